"""Drives a scripted engine in virtual time: nothing waits, and every time is exact."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any

from inferwire_server.domain.engine import EngineEvent, EngineRequest, EngineStream
from inferwire_server.domain.generation import Sampling
from inferwire_server.engines.scripted import ManualClock, Plan, ScriptedEngine, ScriptedOptions
from inferwire_server.engines.scripted.vocabulary import byte_tokens, text_of

from tests.engines.event_recorder import EventRecorder

GREEDY = Sampling(temperature=0.0)


class TimedRecorder(EventRecorder):
    """Knows also when each event came, in seconds since the clock's start."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__()
        self.times: list[float] = []
        self._clock = clock
        self._start = clock.now()

    def __call__(self, event: EngineEvent) -> None:
        self.times.append(round(self._clock.now() - self._start, 9))
        super().__call__(event)

    @property
    def text(self) -> str:
        return text_of(self.token_ids)


class Driver:
    """A started engine, its clock, and the requests that a test gives it."""

    def __init__(self, engine: ScriptedEngine, clock: ManualClock) -> None:
        self.engine = engine
        self.clock = clock
        self._ids = itertools.count()

    def request(self, prompt: str | Sequence[int] = "tell a story", **changes: Any) -> EngineRequest:
        """Greedy, eight tokens, unless changed."""
        ids = byte_tokens(prompt) if isinstance(prompt, str) else tuple(prompt)
        base = EngineRequest(id=f"r{next(self._ids)}", prompt_token_ids=ids, max_output_tokens=8, sampling=GREEDY)
        return dataclasses.replace(base, **changes)

    @property
    def steps(self) -> int:
        """How many there have been."""
        totals = self.engine.load().steps
        assert totals is not None
        return totals.steps

    def submit(
        self, prompt: str | Sequence[int] = "tell a story", **changes: Any
    ) -> tuple[EngineStream, TimedRecorder]:
        recorder = TimedRecorder(self.clock)
        return self.engine.submit(self.request(prompt, **changes), recorder), recorder

    def run(self, prompt: str | Sequence[int] = "tell a story", **changes: Any) -> TimedRecorder:
        """Submit, and let time pass until nothing is due."""
        _, recorder = self.submit(prompt, **changes)
        self.clock.settle()
        return recorder


async def drive(options: ScriptedOptions | None = None, plans: Callable[[str], Plan] | Plan | None = None) -> Driver:
    """Start an engine; a single plan answers every prompt."""
    clock = ManualClock()
    chosen = (lambda _: plans) if isinstance(plans, Plan) else plans
    engine = ScriptedEngine(options or ScriptedOptions(), plans=chosen, clock=clock)
    await engine.start()
    return Driver(engine, clock)
