"""What the client decides, apart from how it talks: nothing here imports grpc, awaits, or reads a clock."""
