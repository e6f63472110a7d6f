"""Makes the stand-in importable as `tensorrt_llm` for the modules that ask for it, and for no other."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator

import pytest

from tests.engines.tensorrt_llm.toy_checkpoint import STANDIN


@pytest.fixture(scope="module")
def standin() -> Iterator[None]:
    """The stand-in on the path; afterwards nothing of it is left imported."""
    sys.path.insert(0, str(STANDIN))
    try:
        yield
    finally:
        if "tensorrt_llm" in sys.modules:
            importlib.import_module("tensorrt_llm.llmapi.llm").forget_exit_hooks()
        sys.path.remove(str(STANDIN))
        for name in [name for name in sys.modules if name.partition(".")[0] == "tensorrt_llm"]:
            del sys.modules[name]
