"""What several of these tests stand on."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio
from inferwire_server.engines.openvino.engine import OpenVinoEngine
from inferwire_server.engines.openvino.options import Profile
from inferwire_server.models.version import ModelVersion

from tests.engines.openvino.engines import model_options, running


@dataclass(frozen=True)
class ReferenceRow:
    """A prompt and its greedy continuation, end-of-sequence ignored, by an independent 32-bit implementation."""

    prompt: list[int]
    continuation: list[int]


@pytest.fixture(scope="session")
def reference_rows() -> list[ReferenceRow]:
    path = Path(__file__).parents[2] / "data" / "smollm2-greedy-fp32.json"
    cases = json.loads(path.read_text())["cases"]
    return [ReferenceRow(case["prompt_token_ids"], case["greedy_token_ids"]) for case in cases]


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def exact_engine(smollm2_f16: ModelVersion) -> AsyncIterator[OpenVinoEngine]:
    """The real model in 32-bit floats."""
    async with running(model_options(smollm2_f16, Profile.EXACT, kv_blocks=400)) as engine:
        yield engine
