"""Promises about cancelling."""

from __future__ import annotations

import pytest
from inferwire_server.domain.engine import Cancelled, Engine, EngineStream

from tests.engines.engine_harness import EngineHarness
from tests.engines.event_recorder import EventRecorder


class CancelPromises(EngineHarness):
    """Cancelling always ends a stream, once, and gives everything back."""

    def _submit(self, engine: Engine) -> tuple[EngineStream, EventRecorder]:
        recorder = EventRecorder()
        return engine.submit(
            self.request(max_output_tokens=64, ignore_end_of_sequence=self._can_ignore(engine)), recorder
        ), recorder

    def _can_ignore(self, engine: Engine) -> bool:
        return "stop.ignore_end_of_sequence" in engine.capabilities.request_fields

    async def test_cancelled_before_its_first_token_still_gets_a_terminal(self, engine: Engine) -> None:
        stream, recorder = self._submit(engine)
        stream.cancel()
        assert isinstance(await recorder.until_ended(self.bound_s), Cancelled)

    async def test_cancelled_midway_ends_before_its_length(self, engine: Engine) -> None:
        stream, recorder = self._submit(engine)
        await recorder.until_tokens(3, self.bound_s)
        stream.cancel()

        assert isinstance(await recorder.until_ended(self.bound_s), Cancelled)
        assert len(recorder.token_ids) < 64

    @pytest.mark.parametrize("after", [0, 1, 5])
    async def test_cancelling_twice_gives_one_terminal_and_nothing_after_it(self, engine: Engine, after: int) -> None:
        stream, recorder = self._submit(engine)
        await recorder.until_tokens(after, self.bound_s)
        stream.cancel()
        stream.cancel()
        await recorder.until_ended(self.bound_s)
        stream.cancel()
        await self.run(engine, self.request())

        assert len(recorder.terminals) == 1
        assert recorder.events[-1] is recorder.terminal

    async def test_cancelling_after_the_end_changes_nothing(self, engine: Engine) -> None:
        recorder = EventRecorder()
        stream = engine.submit(self.request(max_output_tokens=2), recorder)
        ended = await recorder.until_ended(self.bound_s)
        stream.cancel()
        await self.run(engine, self.request())

        assert recorder.terminals == [ended]

    async def test_cancels_give_slots_and_blocks_back(self, engine: Engine) -> None:
        streams = [self._submit(engine) for _ in range(min(4, engine.capabilities.max_running))]
        await streams[0][1].until_tokens(1, self.bound_s)
        for stream, _ in streams:
            stream.cancel()
        for _, recorder in streams:
            await recorder.until_ended(self.bound_s)
        await self.until_idle(engine)

    async def test_a_cancelled_neighbour_changes_nothing(self, engine: Engine) -> None:
        self.requires(engine, "batch_invariant")
        alone = await self.run(engine, self.request(self.prompts[1]))
        stream, cancelled = self._submit(engine)
        beside = EventRecorder()
        engine.submit(self.request(self.prompts[1]), beside)
        await cancelled.until_tokens(2, self.bound_s)
        stream.cancel()
        await beside.until_ended(self.bound_s)
        await cancelled.until_ended(self.bound_s)

        assert beside.token_ids == alone.token_ids

    async def test_a_reused_id_is_fine_once_its_stream_has_ended(self, engine: Engine) -> None:
        request = self.request(max_output_tokens=2)
        first = await self.run(engine, request)
        second = await self.run(engine, request)
        assert first.token_ids == second.token_ids
