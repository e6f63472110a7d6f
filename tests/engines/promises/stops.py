"""Promises about where an output ends."""

from __future__ import annotations

from inferwire_server.domain.engine import Engine
from inferwire_server.domain.generation import FinishReason

from tests.engines.engine_harness import EngineHarness


class StopPromises(EngineHarness):
    """Stop ids end an output and are not part of it; a minimum length holds."""

    async def test_a_stop_token_ends_the_output_and_is_not_among_the_tokens(self, engine: Engine) -> None:
        self.requires(engine, "stop.token_ids")
        free = (await self.run(engine, self.request())).token_ids
        stop = free[len(free) // 2]

        recorder = await self.run(engine, self.request(stop_token_ids=frozenset({stop})))

        assert recorder.token_ids == free[: free.index(stop)]
        assert recorder.finished.reason is FinishReason.STOP
        assert recorder.finished.stop_token_id == stop
        assert recorder.finished.end_token_id is None

    async def test_a_stop_token_that_does_not_come_changes_nothing(self, engine: Engine) -> None:
        self.requires(engine, "stop.token_ids")
        free = (await self.run(engine, self.request())).token_ids
        absent = next(token for token in range(self.vocabulary_size) if token not in {*free, *self.end_token_ids})
        recorder = await self.run(engine, self.request(stop_token_ids=frozenset({absent})))
        assert recorder.token_ids == free

    async def test_a_stop_token_in_the_prompt_does_not_count(self, engine: Engine) -> None:
        self.requires(engine, "stop.token_ids")
        free = (await self.run(engine, self.request())).token_ids
        in_prompt = frozenset(self.prompts[0]).difference(free, self.end_token_ids)
        recorder = await self.run(engine, self.request(stop_token_ids=in_prompt))
        assert recorder.token_ids == free

    async def test_no_stop_token_ends_an_output_before_its_minimum(self, engine: Engine) -> None:
        self.requires(engine, "stop.token_ids", "stop.min_output_tokens")
        free = (await self.run(engine, self.request())).token_ids
        request = self.request(stop_token_ids=frozenset(free[:2]), min_output_tokens=6)
        recorder = await self.run(engine, request)
        assert len(recorder.token_ids) >= 6

    async def test_no_natural_end_comes_before_the_minimum(self, engine: Engine) -> None:
        self.requires(engine, "stop.min_output_tokens", "stop.token_ids")
        prompt = self.prompts[0] if self.ending_prompt is None else self.ending_prompt
        recorder = await self.run(engine, self.request(prompt, max_output_tokens=70, min_output_tokens=66))
        assert len(recorder.token_ids) >= 66
