"""Promises about starting, living and ending."""

from __future__ import annotations

import random
import time

import pytest
from inferwire_server.domain.engine import Engine, EngineRequest, EngineState
from inferwire_server.domain.errors import EngineDown, Unavailable

from tests.engines.engine_harness import GREEDY, EngineHarness
from tests.engines.event_recorder import EventRecorder


class LifecyclePromises(EngineHarness):
    """Health follows the truth; a shutdown leaves nobody waiting; a busy day leaves nothing behind."""

    async def test_is_starting_and_refuses_until_it_has_started(self) -> None:
        engine = await self.make_engine()
        assert engine.health().state is EngineState.STARTING
        with pytest.raises(Unavailable):
            engine.submit(self.request(), EventRecorder())
        await engine.shutdown(grace_s=0.0)

    async def test_is_ready_and_alive_once_started(self, engine: Engine) -> None:
        before = time.monotonic()
        await self.run(engine, self.request())
        health = engine.health()
        assert health.state is EngineState.READY
        assert health.last_progress is not None
        assert before <= health.last_progress <= time.monotonic()

    async def test_an_idle_engine_keeps_showing_signs_of_life(self, engine: Engine) -> None:
        before = time.monotonic()
        await self.until(lambda: (engine.health().last_progress or 0.0) > before)
        assert engine.health().state is EngineState.READY

    async def test_shutdown_ends_live_streams_as_engine_down(self, fresh_engine: Engine) -> None:
        recorders = [EventRecorder() for _ in range(2)]
        for recorder in recorders:
            fresh_engine.submit(self.request(max_output_tokens=64), recorder)
        await fresh_engine.shutdown(grace_s=0.0)
        for recorder in recorders:
            await recorder.until_ended(self.bound_s)
            assert isinstance(recorder.failure, EngineDown)

    async def test_streams_that_end_within_the_grace_are_whole(self, fresh_engine: Engine) -> None:
        recorder = EventRecorder()
        fresh_engine.submit(self.request(max_output_tokens=4), recorder)
        await fresh_engine.shutdown(grace_s=self.bound_s)
        await recorder.until_ended(self.bound_s)
        assert recorder.finished

    async def test_shutdown_is_idempotent_and_final(self, fresh_engine: Engine) -> None:
        await fresh_engine.shutdown(grace_s=0.0)
        await fresh_engine.shutdown(grace_s=0.0)
        assert fresh_engine.health().state is EngineState.DEAD
        with pytest.raises(EngineDown):
            fresh_engine.submit(self.request(), EventRecorder())

    async def test_a_busy_day_leaves_nothing_behind(self, engine: Engine) -> None:
        draw = random.Random(2026)
        recorders = []
        for _ in range(self.mixed_requests):
            request = self._random_request(engine, draw)
            await self.until_room(engine, [request])
            recorder = EventRecorder()
            recorders.append(recorder)
            stream = engine.submit(request, recorder)
            if draw.random() < 0.4:
                await recorder.until_tokens(draw.randrange(4), self.bound_s)
                stream.cancel()
        for recorder in recorders:
            await recorder.until_ended(self.bound_s)

        assert [len(recorder.terminals) for recorder in recorders] == [1] * self.mixed_requests
        await self.until_idle(engine)

    def _random_request(self, engine: Engine, draw: random.Random) -> EngineRequest:
        fields = engine.capabilities.request_fields
        return self.request(
            draw.choice([*self.prompts, self.long_prompt]),
            max_output_tokens=draw.randint(1, 24),
            sampling=draw.choice([GREEDY, self.sampled(seed=draw.randrange(2**32))]),
            ignore_end_of_sequence="stop.ignore_end_of_sequence" in fields and draw.random() < 0.5,
        )
