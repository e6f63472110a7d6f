"""Promises about room: slots, blocks, and what can never run."""

from __future__ import annotations

from typing import Any

import pytest
from inferwire_server.domain.engine import Engine, EngineStream, StepTotals
from inferwire_server.domain.errors import InvalidRequest, Overloaded

from tests.engines.engine_harness import EngineHarness
from tests.engines.event_recorder import EventRecorder
from tests.polling import until


class CapacityPromises(EngineHarness):
    """`room_for` tells what `submit` does; a hopeless request is the caller's fault, a full engine is not."""

    def _fill(self, engine: Engine) -> list[tuple[EngineStream, EventRecorder]]:
        """Submit until there is no room for one more."""
        running = []
        while engine.room_for([request := self._long_request(engine)]):
            recorder = EventRecorder()
            running.append((engine.submit(request, recorder), recorder))
        return running

    def _long_request(self, engine: Engine) -> Any:
        ignore = "stop.ignore_end_of_sequence" in engine.capabilities.request_fields
        return self.request(max_output_tokens=64, ignore_end_of_sequence=ignore)

    async def _cancel_all(self, running: list[tuple[EngineStream, EventRecorder]]) -> None:
        for stream, _ in running:
            stream.cancel()
        for _, recorder in running:
            await recorder.until_ended(self.bound_s)

    async def test_a_full_engine_refuses_as_overloaded(self, engine: Engine) -> None:
        running = self._fill(engine)
        with pytest.raises(Overloaded):
            engine.submit(self._long_request(engine), EventRecorder())
        assert 0 < len(running) <= engine.capabilities.max_running
        await self._cancel_all(running)

    async def test_counts_what_runs(self, engine: Engine) -> None:
        running = self._fill(engine)
        assert engine.load().running == len(running)
        await self._cancel_all(running)

    async def test_its_steps_add_up(self, engine: Engine) -> None:
        before = engine.load().steps or StepTotals()
        recorder = EventRecorder()
        engine.submit(self.request(max_output_tokens=4), recorder)
        await recorder.until_ended(self.bound_s)
        await until(lambda: (engine.load().steps or before).steps > before.steps, within_s=self.bound_s)
        after = engine.load().steps or before
        assert after.seconds >= before.seconds
        assert after.sequences >= before.sequences

    async def test_never_runs_more_than_its_slots(self, engine: Engine) -> None:
        too_many = [self.request(max_output_tokens=1) for _ in range(engine.capabilities.max_running + 1)]
        assert not engine.room_for(too_many)

    async def test_room_for_several_means_that_all_are_taken(self, engine: Engine) -> None:
        requests = [self.request(prompt, max_output_tokens=4) for prompt in self.prompts]
        while not engine.room_for(requests):
            requests.pop()
        recorders = [EventRecorder() for _ in requests]
        for request, recorder in zip(requests, recorders, strict=True):
            engine.submit(request, recorder)
        for recorder in recorders:
            await recorder.until_ended(self.bound_s)
        assert requests

    async def test_tells_its_subscribers_when_room_grows(self, engine: Engine) -> None:
        heard: list[bool] = []
        running = self._fill(engine)
        engine.subscribe(lambda: heard.append(engine.room_for([self._long_request(engine)])))
        await self._cancel_all(running)
        await self.until(lambda: True in heard)

    async def test_holds_blocks_while_it_runs(self, engine: Engine) -> None:
        self.requires(engine, "kv_blocks")
        recorder = EventRecorder()
        stream = engine.submit(self._long_request(engine), recorder)
        await recorder.until_tokens(2, self.bound_s)
        used = engine.load().kv_blocks_used
        stream.cancel()
        await recorder.until_ended(self.bound_s)
        assert used

    async def test_a_prompt_over_the_context_is_the_callers_fault(self, engine: Engine) -> None:
        filler = [self.prompts[0][-1]] * (engine.capabilities.max_context_tokens + 1)
        with pytest.raises(InvalidRequest):
            engine.submit(self.request(filler, max_output_tokens=1), EventRecorder())

    @pytest.mark.parametrize("bad", ["negative", "beyond the vocabulary", "none at all"])
    async def test_a_bad_prompt_id_is_refused_and_harms_nobody(self, engine: Engine, bad: str) -> None:
        good = list(self.prompts[0])
        prompt = {"negative": [*good, -1], "beyond the vocabulary": [*good, self.vocabulary_size], "none at all": []}
        expected = await self.run(engine, self.request())

        with pytest.raises(InvalidRequest):
            engine.submit(self.request(prompt[bad]), EventRecorder())

        assert (await self.run(engine, self.request())).token_ids == expected.token_ids

    async def test_no_output_at_all_is_the_callers_fault(self, engine: Engine) -> None:
        with pytest.raises(InvalidRequest):
            engine.submit(self.request(max_output_tokens=0), EventRecorder())
