"""inferwire: language models as typed gRPC."""
