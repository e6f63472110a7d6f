"""What `tensorrt_llm.llmapi` exports."""

# ruff: noqa: TID252 - importable under its own name only while a test runs

from ..disaggregated_params import DisaggregatedParams
from ..executor import CompletionOutput, LoRARequest, RequestError
from ..sampling_params import GuidedDecodingParams, SamplingParams
from .llm import LLM, RequestOutput
from .llm_args import (
    CudaGraphConfig,
    DraftTargetDecodingConfig,
    EagleDecodingConfig,
    KvCacheConfig,
    MTPDecodingConfig,
    NGramDecodingConfig,
    SchedulerConfig,
)

__all__ = [
    "LLM",
    "CompletionOutput",
    "CudaGraphConfig",
    "DisaggregatedParams",
    "DraftTargetDecodingConfig",
    "EagleDecodingConfig",
    "GuidedDecodingParams",
    "KvCacheConfig",
    "LoRARequest",
    "MTPDecodingConfig",
    "NGramDecodingConfig",
    "RequestError",
    "RequestOutput",
    "SamplingParams",
    "SchedulerConfig",
]
