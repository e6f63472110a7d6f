"""TensorRT-LLM on NVIDIA GPUs. Nothing here imports the package before an engine starts."""
