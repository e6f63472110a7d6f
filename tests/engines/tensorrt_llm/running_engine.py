"""Engines for tests: started on the stand-in, shut down afterwards, and never able to end the test process."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from inferwire_server.domain.engine import EngineRequest
from inferwire_server.domain.generation import Sampling
from inferwire_server.engines.tensorrt_llm.checkpoint import Checkpoint
from inferwire_server.engines.tensorrt_llm.engine import TensorRTEngine
from inferwire_server.engines.tensorrt_llm.options import Options

BOUND_S = 30.0
"""Against hangs; no test asserts a speed by it."""
_ids = itertools.count()


class Exits:
    """Stands where the process would end."""

    def __init__(self) -> None:
        self.codes: list[tuple[float, int]] = []

    def __call__(self, code: int) -> None:
        self.codes.append((time.monotonic(), code))


@asynccontextmanager
async def running_engine(
    checkpoint: Checkpoint, options: Options | None = None, *, exits: Exits | None = None
) -> AsyncIterator[TensorRTEngine]:
    """A started engine."""
    engine = TensorRTEngine(checkpoint, options or Options(), exit_process=exits or Exits())
    await engine.start()
    try:
        yield engine
    finally:
        await engine.shutdown(grace_s=0.0)


def request(prompt: tuple[int, ...] = (201, 202, 203), **changes: Any) -> EngineRequest:
    """A greedy request for 16 tokens, with the changes given."""
    values: dict[str, Any] = {
        "id": f"r{next(_ids)}",
        "prompt_token_ids": prompt,
        "max_output_tokens": 16,
        "sampling": Sampling(temperature=0.0),
    }
    return EngineRequest(**{**values, **changes})


async def until(condition: Callable[[], bool]) -> None:
    """Look every millisecond; fails after BOUND_S."""
    async with asyncio.timeout(BOUND_S):
        while not condition():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.001)
