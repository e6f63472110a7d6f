"""The real package, where it is installed: first its names, then the conformance suite on a real model.

INFERWIRE_GPU_MODEL is the checkpoint folder of a small model; `python -m tools.gpu_check` sets it.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import pytest
from inferwire_server.domain.engine import Engine
from inferwire_server.engines.tensorrt_llm.checkpoint import Checkpoint, read_checkpoint
from inferwire_server.engines.tensorrt_llm.engine import TensorRTEngine
from inferwire_server.engines.tensorrt_llm.options import Options

from tests.engines.engine_contract import EngineContract
from tests.engines.tensorrt_llm.recorded_names import differences, recorded

_FOLDER = os.environ.get("INFERWIRE_GPU_MODEL", "")
_CHECKPOINT: Checkpoint | None = read_checkpoint(Path(_FOLDER)) if _FOLDER else None
_VOCABULARY = _CHECKPOINT.vocabulary_size if _CHECKPOINT else 0

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(importlib.util.find_spec("tensorrt_llm") is None, reason="tensorrt_llm is not installed"),
    pytest.mark.skipif(_CHECKPOINT is None, reason="INFERWIRE_GPU_MODEL names no checkpoint folder"),
    pytest.mark.timeout(1800),
]


@pytest.fixture(scope="module", autouse=True)
def _names_are_as_recorded() -> None:
    """Nothing below means anything on a package with other names."""
    certain = [str(difference) for difference in differences(recorded(), is_whole=False) if difference.is_certain]
    assert not certain, "\n".join(certain)


def test_names_recorded_as_probable_are_as_recorded() -> None:
    assert [str(difference) for difference in differences(recorded(), is_whole=False)] == []


def _prompt(start: int, length: int) -> Sequence[int]:
    """Ordinary ids, away from the control ids that lie at either end of a vocabulary."""
    return tuple(_VOCABULARY // 4 + (start + 7 * step) % (_VOCABULARY // 2) for step in range(length))


class _OnTheGpu(EngineContract):
    vocabulary_size = _VOCABULARY
    end_token_ids = _CHECKPOINT.end_token_ids if _CHECKPOINT else frozenset()
    prompts = tuple(_prompt(1000 * number, 12) for number in range(8)) if _VOCABULARY else ()
    long_prompt = _prompt(77, 200) if _VOCABULARY else ()
    bound_s = 600.0
    not_shown = frozenset(f"structured_output.{kind}" for kind in ("json_schema", "regex", "ebnf", "choices"))
    options: ClassVar[Options]

    @classmethod
    async def make_engine(cls) -> Engine:
        assert _CHECKPOINT is not None
        return TensorRTEngine(_CHECKPOINT, cls.options)


class TestDefaultSampler(_OnTheGpu):
    """What an operator gets without choosing. Two engines must fit the GPU for a moment."""

    engine_name = "tensorrt_llm on a GPU, torch sampler"
    options = Options(max_batch_size=8, kv_cache_memory_fraction=0.2)


class TestTrtllmSampler(_OnTheGpu):
    """The sampler that honours seeds and penalties, and logprobs."""

    engine_name = "tensorrt_llm on a GPU, trtllm sampler"
    options = Options(max_batch_size=8, kv_cache_memory_fraction=0.2, sampler="trtllm", logprobs=True)
