"""Promises about continuing an output that was interrupted."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from inferwire_server.domain.engine import Engine, EngineRequest, ResumeGuarantee
from inferwire_server.domain.generation import Continuation, Grammar, GrammarKind

from tests.engines.engine_harness import GREEDY, EngineHarness
from tests.engines.promises.structured import SCHEMA


class ResumePromises(EngineHarness):
    """What a resumed stream equals is what the engine declares, at every cut."""

    def _requires_guarantee(self, engine: Engine, *sufficient: ResumeGuarantee) -> None:
        if engine.capabilities.resume_guarantee not in sufficient:
            pytest.skip(f"missing capability: resume_guarantee {sufficient[0].name}")

    def _continued(self, request: EngineRequest, prior: list[int]) -> EngineRequest:
        return dataclasses.replace(
            request,
            id=f"{request.id}-cut-{len(prior)}",
            resumed_token_ids=prior,
            max_output_tokens=request.max_output_tokens - len(prior),
        )

    async def _equals_at_every_cut(self, engine: Engine, request: EngineRequest) -> None:
        whole = await self.run(engine, request)
        tokens = whole.token_ids
        cuts = range(1, min(len(tokens) + 1, request.max_output_tokens))
        resumed = await self.run_together(engine, [self._continued(request, tokens[:cut]) for cut in cuts])

        assert [tokens[:cut] + recorder.token_ids for cut, recorder in zip(cuts, resumed, strict=True)] == [
            tokens
        ] * len(cuts)
        assert {dataclasses.replace(recorder.finished, cached_tokens=None) for recorder in resumed} <= {
            dataclasses.replace(whole.finished, cached_tokens=None)
        }

    async def test_greedy_output_continues_exactly(self, engine: Engine) -> None:
        self._requires_guarantee(engine, ResumeGuarantee.GREEDY, ResumeGuarantee.EXACT)
        await self._equals_at_every_cut(engine, self.request())

    @pytest.mark.parametrize("index", [0, 2])
    async def test_sampled_output_continues_exactly(self, engine: Engine, index: int) -> None:
        self._requires_guarantee(engine, ResumeGuarantee.EXACT)
        await self._equals_at_every_cut(engine, self.request(sampling=self.sampled(), output_index=index))

    @pytest.mark.parametrize("field", ["repetition_penalty", "presence_penalty", "frequency_penalty"])
    async def test_penalties_see_the_resumed_tokens(self, engine: Engine, field: str) -> None:
        self._requires_guarantee(engine, ResumeGuarantee.EXACT)
        self.requires(engine, f"sampling.{field}")
        change: dict[str, Any] = {field: 1.5}
        sampling = dataclasses.replace(GREEDY, **change)
        await self._equals_at_every_cut(engine, self.request(sampling=sampling))

    async def test_a_grammar_continues_where_it_was(self, engine: Engine) -> None:
        self._requires_guarantee(engine, ResumeGuarantee.EXACT)
        self.requires(engine, "structured_output.json_schema")
        grammar = Grammar(kind=GrammarKind.JSON_SCHEMA, source=json.dumps(SCHEMA))
        await engine.check(grammar)
        await self._equals_at_every_cut(engine, self.request(grammar=grammar, max_output_tokens=64))

    async def test_the_minimum_length_counts_resumed_tokens(self, engine: Engine) -> None:
        self._requires_guarantee(engine, ResumeGuarantee.EXACT)
        self.requires(engine, "stop.min_output_tokens", "stop.token_ids")
        free = (await self.run(engine, self.request())).token_ids
        request = self.request(stop_token_ids=frozenset({free[0]}), min_output_tokens=6)
        await self._equals_at_every_cut(engine, request)

    async def test_tells_how_it_would_continue(self, engine: Engine) -> None:
        if engine.capabilities.resume_guarantee is ResumeGuarantee.NONE:
            pytest.skip("missing capability: resume_guarantee")
        way = engine.continuation_of(self.request(resumed_token_ids=[self.prompts[0][0]]))
        assert way in {Continuation.PREFILLED, Continuation.REGENERATED}

    async def test_a_continuation_produces_no_more_than_what_was_left(self, engine: Engine) -> None:
        if engine.capabilities.resume_guarantee is ResumeGuarantee.NONE:
            pytest.skip("missing capability: resume_guarantee")
        whole = await self.run(engine, self.request())
        request = self._continued(self.request(), whole.token_ids[:5])
        resumed = await self.run(engine, request)
        assert len(resumed.token_ids) <= request.max_output_tokens
        assert resumed.terminals
