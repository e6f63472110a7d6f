"""Executors and their results."""

from .request import LoRARequest
from .result import CompletionOutput, GenerationResult, IterationResult
from .utils import RequestError
from .worker import GenerationExecutor

__all__ = [
    "CompletionOutput",
    "GenerationExecutor",
    "GenerationResult",
    "IterationResult",
    "LoRARequest",
    "RequestError",
]
