"""Promises about the events of one stream."""

from __future__ import annotations

import pytest
from inferwire_server.domain.engine import Engine, Finished, PrefillProgress, PromptTokens, Tokens
from inferwire_server.domain.generation import FinishReason

from tests.engines.engine_harness import EngineHarness
from tests.engines.event_recorder import EventRecorder


class StreamPromises(EngineHarness):
    """One stream: its events, their order, and its length."""

    async def test_ends_with_exactly_one_terminal_and_nothing_after_it(self, engine: Engine) -> None:
        recorder = await self.run(engine, self.request())
        await self.run(engine, self.request(self.prompts[1]))

        assert len(recorder.terminals) == 1
        assert isinstance(recorder.events[-1], Finished)

    async def test_never_calls_the_sink_inside_submit(self, engine: Engine) -> None:
        recorder = EventRecorder()
        engine.submit(self.request(), recorder)
        assert recorder.events == []
        await recorder.until_ended(self.bound_s)

    async def test_a_tokens_event_is_never_empty(self, engine: Engine) -> None:
        recorder = await self.run(engine, self.request())
        assert all(event.token_ids for event in recorder.events if isinstance(event, Tokens))

    async def test_prefill_events_come_before_the_first_tokens_and_only_grow(self, engine: Engine) -> None:
        recorder = await self.run(engine, self.request(self.long_prompt))

        kinds = [isinstance(event, PrefillProgress | PromptTokens) for event in recorder.events]
        assert kinds == sorted(kinds, reverse=True)
        assert recorder.prefill_progress == sorted(recorder.prefill_progress)
        assert all(0 < done <= len(self.long_prompt) for done in recorder.prefill_progress)

    @pytest.mark.parametrize("limit", [1, 5, 32])
    async def test_max_output_tokens_is_reached_exactly_when_end_of_sequence_is_ignored(
        self, engine: Engine, limit: int
    ) -> None:
        self.requires(engine, "stop.ignore_end_of_sequence")
        recorder = await self.run(engine, self.request(max_output_tokens=limit, ignore_end_of_sequence=True))

        assert len(recorder.token_ids) == limit
        assert recorder.finished.reason is FinishReason.LENGTH
        assert recorder.finished.end_token_id is None

    @pytest.mark.parametrize("limit", [1, 2, 17])
    async def test_max_output_tokens_is_a_ceiling(self, engine: Engine, limit: int) -> None:
        for recorder in await self.run_together(
            engine, [self.request(prompt, max_output_tokens=limit) for prompt in self.prompts]
        ):
            assert len(recorder.token_ids) <= limit
            assert recorder.finished.reason is FinishReason.STOP or len(recorder.token_ids) == limit

    async def test_every_token_is_in_the_vocabulary_and_none_is_an_end_token(self, engine: Engine) -> None:
        for recorder in await self.run_together(engine, [self.request(prompt) for prompt in self.prompts]):
            assert all(0 <= token < self.vocabulary_size for token in recorder.token_ids)
            assert not self.end_token_ids.intersection(recorder.token_ids)

    async def test_a_natural_end_is_reported_with_its_token_and_not_among_the_tokens(self, engine: Engine) -> None:
        if self.ending_prompt is None:
            pytest.skip("missing: a prompt whose output ends by itself")
        recorder = await self.run(engine, self.request(self.ending_prompt, max_output_tokens=64))

        assert recorder.finished.reason is FinishReason.STOP
        assert recorder.finished.end_token_id in self.end_token_ids
        assert recorder.finished.stop_token_id is None
        assert not self.end_token_ids.intersection(recorder.token_ids)

    async def test_end_of_sequence_can_be_ignored(self, engine: Engine) -> None:
        """Engines that cannot hold an end token back deliver an ignored one like any other."""
        if self.ending_prompt is None:
            pytest.skip("missing: a prompt whose output ends by itself")
        self.requires(engine, "stop.ignore_end_of_sequence")
        request = self.request(self.ending_prompt, max_output_tokens=64, ignore_end_of_sequence=True)
        recorder = await self.run(engine, request)

        assert len(recorder.token_ids) == 64
        assert recorder.finished.reason is FinishReason.LENGTH
