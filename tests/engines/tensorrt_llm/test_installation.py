"""Finding the package: late, once, and with an answer that says what to do."""

from __future__ import annotations

import subprocess
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from inferwire_server.domain.errors import EngineDown
from inferwire_server.engines.tensorrt_llm.engine import TensorRTEngine
from inferwire_server.engines.tensorrt_llm.installation import load_installation

from tests.engines.tensorrt_llm.toy_checkpoint import toy_checkpoint

REMEDY = "Run the image built from docker/Dockerfile.gpu .*tag 1.2.1.*, or choose another engine with --engine"


class _Llm:
    def generate_async(self, inputs: Any, sampling_params: Any = None, streaming: bool = False) -> None:
        """As in a version before the cache salt."""


def package(version: str = "1.2.1", llm: type = _Llm) -> Any:
    """An importer of a package of that version."""
    names = ("SamplingParams", "GuidedDecodingParams", "KvCacheConfig", "SchedulerConfig", "CudaGraphConfig")
    modules: dict[str, Any] = {
        "tensorrt_llm": SimpleNamespace(__version__=version),
        "tensorrt_llm.llmapi": SimpleNamespace(LLM=llm, **dict.fromkeys(names, dict)),
        "tensorrt_llm.executor.utils": SimpleNamespace(RequestError=RuntimeError),
    }
    return modules.__getitem__


def failing(error: Exception) -> Any:
    """An importer that fails."""

    def import_module(name: str) -> ModuleType:
        raise error

    return import_module


async def test_without_the_package_starting_says_what_to_do() -> None:
    with pytest.raises(EngineDown, match=f"the package tensorrt-llm is not installed. {REMEDY}"):
        await TensorRTEngine(toy_checkpoint()).start()


@pytest.mark.parametrize(
    ("error", "named"),
    [
        (ImportError("libnvinfer.so.10: cannot open shared object file"), "libnvinfer.so.10"),
        (OSError("libpython3.12.so.1.0: cannot open shared object file"), "libpython3.12.so.1.0"),
        (RuntimeError("no CUDA-capable device is detected"), "no CUDA-capable device"),
        (ModuleNotFoundError("No module named 'mpi4py'", name="mpi4py"), "the module mpi4py"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_missing_is_named(error: Exception, named: str) -> None:
    with pytest.raises(EngineDown, match=f"engine unavailable: .*{named}.*{REMEDY}"):
        load_installation(failing(error))


@pytest.mark.parametrize("version", ["1.1.0", "0.21.0", "", "unknown"])
def test_an_older_version_is_refused(version: str) -> None:
    with pytest.raises(EngineDown, match=r"is older than 1\.2"):
        load_installation(package(version))


@pytest.mark.parametrize("version", ["1.2.0rc6.post1", "1.2.1", "1.3.0rc29", "2.0.0"])
def test_this_version_and_newer_ones_are_taken(version: str) -> None:
    assert load_installation(package(version)).version == version


def test_arguments_of_requests_are_those_of_the_installed_signature() -> None:
    installation = load_installation(package())
    assert not installation.has_cache_salt
    assert installation.speculative_configs == {}


def test_a_decorator_that_hides_the_signature_hides_nothing_of_1_2() -> None:
    class Decorated:
        def generate_async(self, *args: Any, **kwargs: Any) -> None:
            """As some decorators leave it."""

    assert load_installation(package(llm=Decorated)).has_cache_salt


def test_a_signature_without_what_is_needed_is_refused() -> None:
    class Strange:
        def generate_async(self, prompt: Any) -> None:
            """As in no version so far."""

    with pytest.raises(EngineDown, match=r"LLM\.generate_async takes no inputs, sampling_params, streaming"):
        load_installation(package(llm=Strange))


def test_importing_the_adapter_imports_neither_the_package_nor_torch() -> None:
    code = (
        "import sys, inferwire_server.engines.tensorrt_llm.engine;"
        "print([n for n in ('tensorrt_llm', 'torch', 'pynvml', 'mpi4py') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout.strip() == "[]"
