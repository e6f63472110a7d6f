"""Promises about the sampling fields."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest
from inferwire_server.domain.engine import Engine, EngineRequest
from inferwire_server.domain.errors import InvalidRequest
from inferwire_server.domain.generation import Sampling

from tests.engines.engine_harness import EngineHarness
from tests.engines.event_recorder import EventRecorder


class SamplingPromises(EngineHarness):
    """Every sampling field that is honoured has its effect."""

    @pytest.mark.parametrize(
        ("field", "value"), [("top_k", 1), ("top_p", 1e-6), ("min_p", 1.0)], ids=["top_k", "top_p", "min_p"]
    )
    async def test_the_narrowest_choice_is_greedy(self, engine: Engine, field: str, value: float) -> None:
        self.requires(engine, f"sampling.{field}", "sampling.temperature")
        greedy = await self.run(engine, self.request())
        change: dict[str, Any] = {field: value}
        narrow = await self.run(engine, self.request(sampling=self.sampled(**change)))
        assert narrow.token_ids == greedy.token_ids

    async def test_zero_temperature_ignores_the_seed(self, engine: Engine) -> None:
        self.requires(engine, "sampling.temperature")
        greedy = await self.run(engine, self.request())
        seeded = await self.run(engine, self.request(sampling=Sampling(temperature=0.0, seed=99)))
        assert seeded.token_ids == greedy.token_ids

    async def test_a_large_bias_forces_a_token(self, engine: Engine) -> None:
        self.requires(engine, "sampling.logit_bias")
        token = self.prompts[0][-1]
        request = self.request(sampling=Sampling(temperature=0.0, logit_bias=((token, 100.0),)), max_output_tokens=4)
        assert (await self.run(engine, request)).token_ids == [token] * 4

    async def test_a_large_negative_bias_bans_a_token(self, engine: Engine) -> None:
        self.requires(engine, "sampling.logit_bias")
        banned = (await self.run(engine, self.request())).token_ids[0]
        request = self.request(sampling=Sampling(temperature=0.0, logit_bias=((banned, -100.0),)))
        assert banned not in (await self.run(engine, request)).token_ids

    @pytest.mark.parametrize(
        ("field", "value"), [("repetition_penalty", 10.0), ("presence_penalty", 2.0), ("frequency_penalty", 2.0)]
    )
    async def test_a_penalty_makes_repeats_rarer(self, engine: Engine, field: str, value: float) -> None:
        self.requires(engine, f"sampling.{field}")
        change: dict[str, Any] = {field: value}
        plain = [self.request(sampling=self.sampled(seed), max_output_tokens=48) for seed in range(4)]
        penalised = [dataclasses.replace(each, sampling=dataclasses.replace(each.sampling, **change)) for each in plain]

        assert await self._repeats(engine, penalised) < await self._repeats(engine, plain)

    async def _repeats(self, engine: Engine, requests: Sequence[EngineRequest]) -> int:
        outputs = [(await self.run(engine, request)).token_ids for request in requests]
        return sum(len(output) - len(set(output)) for output in outputs)

    async def test_neutral_values_change_nothing(self, engine: Engine) -> None:
        self.requires(engine, "sampling.top_p", "sampling.top_k", "sampling.repetition_penalty")
        plain = await self.run(engine, self.request(sampling=self.sampled()))
        neutral = self.sampled(top_p=1.0, top_k=0, min_p=0.0, repetition_penalty=1.0, presence_penalty=0.0)
        assert (await self.run(engine, self.request(sampling=neutral))).token_ids == plain.token_ids

    async def test_a_bias_outside_the_vocabulary_is_refused(self, engine: Engine) -> None:
        self.requires(engine, "sampling.logit_bias")
        bias = Sampling(temperature=0.0, logit_bias=((self.vocabulary_size, 1.0),))
        with pytest.raises(InvalidRequest):
            engine.submit(self.request(sampling=bias), EventRecorder())
