"""Requests to an engine under test, and waiting for what comes back."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from typing import Any

from inferwire_server.domain.engine import Engine, EngineRequest, EngineStream
from inferwire_server.domain.generation import Sampling

from tests.engines.event_recorder import EventRecorder

GREEDY = Sampling(temperature=0.0)
BOUND_S = 45.0
"""No single wait is longer; a bound against hangs, not a speed."""
_numbers = itertools.count()


def a_request(prompt: Sequence[int], max_output_tokens: int = 8, **changes: Any) -> EngineRequest:
    """A greedy request; anything can be changed."""
    settings: dict[str, Any] = {"id": f"request-{next(_numbers)}", "sampling": GREEDY} | changes
    return EngineRequest(prompt_token_ids=prompt, max_output_tokens=max_output_tokens, **settings)


def submitted(engine: Engine, request: EngineRequest) -> tuple[EngineStream, EventRecorder]:
    """Submit, and keep both ends."""
    recorder = EventRecorder()
    return engine.submit(request, recorder), recorder


async def run(engine: Engine, request: EngineRequest, bound_s: float = BOUND_S) -> EventRecorder:
    """Submit, and wait for the end."""
    _, recorder = submitted(engine, request)
    await recorder.until_ended(bound_s)
    return recorder


async def run_together(engine: Engine, requests: Sequence[EngineRequest]) -> list[EventRecorder]:
    """Submit all at once, and wait for all ends."""
    recorders = [submitted(engine, request)[1] for request in requests]
    for recorder in recorders:
        await recorder.until_ended(BOUND_S)
    return recorders


async def until(condition: Callable[[], bool], bound_s: float = BOUND_S) -> None:
    """Look at a condition every few milliseconds."""
    async with asyncio.timeout(bound_s):
        while not condition():  # noqa: ASYNC110 - processes and load snapshots have no event to wait for
            await asyncio.sleep(0.005)
