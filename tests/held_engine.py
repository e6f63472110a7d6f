"""A scripted engine that stands still when a test says so, with every stream in the middle of its text."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from inferwire_server.engines.scripted import ManualClock, ScriptedEngine, ScriptedOptions

_STEP_S = 0.01


class HeldEngine:
    """Its time passes a step with each turn of the loop, unless it is held."""

    def __init__(self, options: ScriptedOptions) -> None:
        self.is_held = False
        self._clock = ManualClock()
        self.engine = ScriptedEngine(options, clock=self._clock)

    async def run(self) -> None:
        while True:
            if not self.is_held:
                self._clock.advance(_STEP_S)
            await asyncio.sleep(0.001)


@asynccontextmanager
async def held_engine(options: ScriptedOptions | None = None) -> AsyncIterator[HeldEngine]:
    """It runs until it is held, and again when it is let go."""
    held = HeldEngine(options or ScriptedOptions(step_base_s=_STEP_S, max_running=64))
    running = asyncio.create_task(held.run(), name="engine's time")
    try:
        yield held
    finally:
        held.is_held = False
        running.cancel()
