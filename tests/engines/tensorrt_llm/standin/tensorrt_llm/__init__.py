"""A stand-in for TensorRT-LLM 1.2: the recorded names, without a GPU, and as unkind as the real one can be."""

from .disaggregated_params import DisaggregatedParams
from .llmapi import LLM, KvCacheConfig, RequestOutput
from .sampling_params import GuidedDecodingParams, SamplingParams
from .scheduling_params import SchedulingParams
from .version import __version__

__all__ = [
    "LLM",
    "DisaggregatedParams",
    "GuidedDecodingParams",
    "KvCacheConfig",
    "RequestOutput",
    "SamplingParams",
    "SchedulingParams",
    "__version__",
]
