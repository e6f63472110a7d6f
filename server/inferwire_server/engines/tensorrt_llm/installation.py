"""Finding TensorRT-LLM: imported here, once, when an engine starts, and nowhere else."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import cast

from inferwire_server.domain.errors import EngineDown
from inferwire_server.engines.tensorrt_llm.surface import Construct, ConstructLlm

PACKAGE = "tensorrt_llm"
SUPPORTED = (1, 2)
"""Major and minor version that the adapter was written against; older is refused, newer gets no new powers."""

_REMEDY = (
    "Run the image built from docker/Dockerfile.gpu (NVIDIA's container tensorrt-llm/release, tag 1.2.1), "
    "or choose another engine with --engine."
)
_SPECULATIVE_CONFIGS = {
    "ngram": "NGramDecodingConfig",
    "eagle": "EagleDecodingConfig",
    "mtp": "MTPDecodingConfig",
    "draft_target": "DraftTargetDecodingConfig",
}
_NEEDED_ARGUMENTS = frozenset({"inputs", "sampling_params", "streaming"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """The names of the installed package that the adapter uses."""

    version: str
    llm: ConstructLlm
    sampling_params: Construct
    guided_decoding_params: Construct
    kv_cache_config: Construct
    scheduler_config: Construct
    cuda_graph_config: Construct
    speculative_configs: Mapping[str, Construct]
    """By speculation method; those that the version has."""
    request_error: type[Exception]
    request_arguments: frozenset[str]
    """Parameter names of `LLM.generate_async`."""

    @property
    def has_cache_salt(self) -> bool:
        return "cache_salt" in self.request_arguments


def require_installed() -> None:
    """Raise EngineDown at once, without importing anything, when the package is not there at all."""
    if importlib.util.find_spec(PACKAGE) is None:
        raise EngineDown(f"engine unavailable: the package tensorrt-llm is not installed. {_REMEDY}")


def load_installation(import_module: Callable[[str], ModuleType] = importlib.import_module) -> Installation:
    """Import the package; may take a minute. Raises EngineDown that names what is missing and what to do."""
    try:
        package = import_module(PACKAGE)
        api = import_module(f"{PACKAGE}.llmapi")
        errors = import_module(f"{PACKAGE}.executor.utils")
    except ModuleNotFoundError as error:
        raise EngineDown(f"engine unavailable: the module {error.name} is not installed. {_REMEDY}") from error
    except (ImportError, OSError, RuntimeError) as error:
        raise EngineDown(f"engine unavailable: TensorRT-LLM does not load here: {error}. {_REMEDY}") from error
    version = str(getattr(package, "__version__", ""))
    _require_supported(version)
    try:
        return _names(version, api, errors)
    except AttributeError as error:
        raise EngineDown(
            f"engine unavailable: TensorRT-LLM {version} is not as expected: {error}. {_REMEDY}"
        ) from error


def _require_supported(version: str) -> None:
    numbers = re.match(r"(\d+)\.(\d+)", version)
    if numbers is None or (int(numbers[1]), int(numbers[2])) < SUPPORTED:
        wanted = ".".join(map(str, SUPPORTED))
        raise EngineDown(f"engine unavailable: TensorRT-LLM {version or '?'} is older than {wanted}. {_REMEDY}")


def _names(version: str, api: ModuleType, errors: ModuleType) -> Installation:
    parameters = inspect.signature(api.LLM.generate_async).parameters
    arguments = frozenset(parameters)
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values()):
        arguments |= _NEEDED_ARGUMENTS | {"cache_salt"}  # a decorator hides the names, which 1.2 has
    missing = sorted(_NEEDED_ARGUMENTS - arguments)
    if missing:
        raise AttributeError(f"LLM.generate_async takes no {', '.join(missing)}")
    return Installation(
        version=version,
        llm=cast("ConstructLlm", api.LLM),
        sampling_params=cast("Construct", api.SamplingParams),
        guided_decoding_params=cast("Construct", api.GuidedDecodingParams),
        kv_cache_config=cast("Construct", api.KvCacheConfig),
        scheduler_config=cast("Construct", api.SchedulerConfig),
        cuda_graph_config=cast("Construct", api.CudaGraphConfig),
        speculative_configs={
            method: cast("Construct", getattr(api, name))
            for method, name in _SPECULATIVE_CONFIGS.items()
            if hasattr(api, name)
        },
        request_error=cast("type[Exception]", errors.RequestError),
        request_arguments=arguments,
    )
