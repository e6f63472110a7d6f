"""Promises about what decides the tokens."""

from __future__ import annotations

import random

from inferwire_server.domain.engine import Engine

from tests.engines.engine_harness import GREEDY, EngineHarness


class DeterminismPromises(EngineHarness):
    """Greedy is repeatable, a seed decides a sample, and neighbours do not."""

    async def test_greedy_output_is_repeatable(self, engine: Engine) -> None:
        first = await self.run(engine, self.request())
        second = await self.run(engine, self.request())
        assert first.token_ids == second.token_ids

    async def test_same_seed_same_tokens(self, engine: Engine) -> None:
        self.requires(engine, "sampling.seed")
        first = await self.run(engine, self.request(sampling=self.sampled(seed=42)))
        second = await self.run(engine, self.request(sampling=self.sampled(seed=42)))
        assert first.token_ids == second.token_ids

    async def test_different_seeds_differ(self, engine: Engine) -> None:
        self.requires(engine, "sampling.seed")
        seeds = (0, 1, 42, 2**32 - 1)
        recorders = [await self.run(engine, self.request(sampling=self.sampled(seed=seed))) for seed in seeds]
        assert len({tuple(recorder.token_ids) for recorder in recorders}) == len(seeds)

    async def test_outputs_of_one_seed_differ_by_their_index(self, engine: Engine) -> None:
        self.requires(engine, "sampling.seed")
        requests = [self.request(sampling=self.sampled(seed=42), output_index=index) for index in range(4)]
        recorders = [await self.run(engine, request) for request in requests]
        assert len({tuple(recorder.token_ids) for recorder in recorders}) == len(requests)

    async def test_batch_mates_do_not_change_each_others_output(self, engine: Engine) -> None:
        self.requires(engine, "batch_invariant")
        requests = [
            self.request(prompt, sampling=sampling)
            for prompt in self.prompts
            for sampling in (GREEDY, self.sampled(seed=len(prompt)))
        ]
        alone = {request.id: (await self.run(engine, request)).token_ids for request in requests}

        shuffled = random.Random(1).sample(requests, len(requests))
        together = await self.run_together(engine, shuffled)

        assert {request.id: recorder.token_ids for request, recorder in zip(shuffled, together, strict=True)} == alone

    async def test_a_longer_limit_only_appends(self, engine: Engine) -> None:
        self.requires(engine, "batch_invariant")
        short = await self.run(engine, self.request(max_output_tokens=8))
        longer = await self.run(engine, self.request(max_output_tokens=24))
        assert longer.token_ids[: len(short.token_ids)] == short.token_ids
