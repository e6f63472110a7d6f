"""Promises about log probabilities."""

from __future__ import annotations

from inferwire_server.domain.engine import Engine, Tokens

from tests.engines.engine_harness import EngineHarness


class LogprobPromises(EngineHarness):
    """Where logprobs are asked for, each token has its own; elsewhere there are none."""

    async def test_without_asking_there_are_none(self, engine: Engine) -> None:
        recorder = await self.run(engine, self.request())
        assert recorder.logprobs == []
        assert recorder.prompt_tokens == []

    async def test_every_token_has_the_logprob_of_its_own(self, engine: Engine) -> None:
        self.requires(engine, "output.top_logprobs")
        recorder = await self.run(engine, self.request(top_logprobs=0))

        assert [entry.token.token_id for entry in recorder.logprobs] == recorder.token_ids
        assert all(entry.token.logprob is not None and entry.token.logprob <= 0 for entry in recorder.logprobs)
        assert all(entry.top == () for entry in recorder.logprobs)
        assert all(
            len(event.logprobs) == len(event.token_ids) for event in recorder.events if isinstance(event, Tokens)
        )

    async def test_the_likeliest_candidates_come_best_first(self, engine: Engine) -> None:
        self.requires(engine, "output.top_logprobs", "max_top_logprobs")
        count = engine.capabilities.max_top_logprobs
        recorder = await self.run(engine, self.request(top_logprobs=count))

        for entry in recorder.logprobs:
            values = [candidate.logprob for candidate in entry.top if candidate.logprob is not None]
            assert len(values) == count
            assert values == sorted(values, reverse=True)
            assert entry.top[0].token_id == entry.token.token_id

    async def test_asking_for_logprobs_does_not_change_the_tokens(self, engine: Engine) -> None:
        self.requires(engine, "output.top_logprobs", "sampling.seed")
        plain = await self.run(engine, self.request(sampling=self.sampled()))
        asked = await self.run(engine, self.request(sampling=self.sampled(), top_logprobs=0))
        assert asked.token_ids == plain.token_ids

    async def test_the_prompts_logprobs_come_once_before_the_first_tokens(self, engine: Engine) -> None:
        self.requires(engine, "output.prompt_top_logprobs")
        recorder = await self.run(engine, self.request(prompt_top_logprobs=1))

        (prompt,) = recorder.prompt_tokens
        assert [entry.token.token_id for entry in prompt.tokens] == list(self.prompts[0])
        assert prompt.tokens[0].token.logprob is None
        assert all(entry.token.logprob is not None and entry.token.logprob <= 0 for entry in prompt.tokens[1:])
        first_tokens = next(index for index, event in enumerate(recorder.events) if isinstance(event, Tokens))
        assert recorder.events.index(prompt) < first_tokens
