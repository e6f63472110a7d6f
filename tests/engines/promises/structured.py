"""Promises about structured output."""

from __future__ import annotations

import json
import re

import jsonschema
import pytest
from inferwire_server.domain.engine import Engine
from inferwire_server.domain.errors import InvalidRequest
from inferwire_server.domain.generation import FinishReason, Grammar, GrammarKind

from tests.engines.engine_harness import EngineHarness
from tests.engines.event_recorder import EventRecorder

SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 12}, "warm": {"type": "boolean"}},
    "required": ["city", "warm"],
    "additionalProperties": False,
}


class StructuredPromises(EngineHarness):
    """A grammar that is honoured holds; one that cannot be compiled is refused beforehand."""

    async def _obeying(self, engine: Engine, grammar: Grammar) -> str:
        await engine.check(grammar)
        recorder = await self.run(engine, self.request(grammar=grammar, max_output_tokens=64))
        assert recorder.finished.reason is FinishReason.STOP
        return self.text_of(recorder.token_ids)

    async def test_a_json_schema_holds(self, engine: Engine) -> None:
        self.requires(engine, "structured_output.json_schema")
        text = await self._obeying(engine, Grammar(kind=GrammarKind.JSON_SCHEMA, source=json.dumps(SCHEMA)))
        jsonschema.validate(json.loads(text), SCHEMA)

    async def test_a_regex_holds(self, engine: Engine) -> None:
        self.requires(engine, "structured_output.regex")
        text = await self._obeying(engine, Grammar(kind=GrammarKind.REGEX, source="[0-9]{3}-[a-z]{2}"))
        assert re.fullmatch("[0-9]{3}-[a-z]{2}", text)

    async def test_an_ebnf_holds(self, engine: Engine) -> None:
        self.requires(engine, "structured_output.ebnf")
        text = await self._obeying(engine, Grammar(kind=GrammarKind.EBNF, source='root ::= "red" | "green"'))
        assert text in {"red", "green"}

    async def test_a_choice_is_one_of_the_texts(self, engine: Engine) -> None:
        self.requires(engine, "structured_output.choices")
        choices = ("yes", "no", 'it’s "unclear"\n')
        text = await self._obeying(engine, Grammar(kind=GrammarKind.CHOICES, texts=choices))
        assert text in choices

    @pytest.mark.parametrize(
        ("field", "source"),
        [("json_schema", '{"type": 12}'), ("json_schema", "{"), ("regex", "(["), ("ebnf", 'root ::= "a')],
        ids=["schema of a wrong type", "schema that is not JSON", "open regex", "open ebnf"],
    )
    async def test_a_bad_grammar_is_refused_before_it_runs(self, engine: Engine, field: str, source: str) -> None:
        self.requires(engine, f"structured_output.{field}")
        with pytest.raises(InvalidRequest):
            await engine.check(Grammar(kind=GrammarKind(field), source=source))

    async def test_a_bad_grammar_beside_a_stream_changes_nothing(self, engine: Engine) -> None:
        self.requires(engine, "structured_output.regex", "batch_invariant")
        alone = await self.run(engine, self.request())
        beside = EventRecorder()
        engine.submit(self.request(), beside)
        with pytest.raises(InvalidRequest):
            await engine.check(Grammar(kind=GrammarKind.REGEX, source="(["))
        await beside.until_ended(self.bound_s)
        assert beside.token_ids == alone.token_ids

    async def test_grammars_beside_plain_streams_change_nothing(self, engine: Engine) -> None:
        self.requires(engine, "structured_output.regex", "batch_invariant")
        grammar = Grammar(kind=GrammarKind.REGEX, source="[ab]{8}")
        await engine.check(grammar)
        alone = await self.run(engine, self.request())
        plain, obeying = await self.run_together(engine, [self.request(), self.request(grammar=grammar)])
        assert plain.token_ids == alone.token_ids
        assert re.fullmatch("[ab]{8}", self.text_of(obeying.token_ids))
