"""Grammars reach the pipeline's compiler in words that it reads as everybody does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from inferwire_server.domain.errors import InvalidRequest
from inferwire_server.domain.generation import FinishReason, Grammar, GrammarKind
from inferwire_server.engines.openvino.grammar_spelling import choices_grammar, misspelt, usual_ebnf, usual_regex

from tests.engines.openvino.byte_model import text_of
from tests.engines.openvino.engines import byte_model_options, running
from tests.engines.openvino.random_model import write_random_model
from tests.engines.openvino.requests import a_request, run


def test_choices_become_quoted_alternatives_with_nothing_left_to_interpret() -> None:
    assert choices_grammar(['a"', "\\b"]) == r'root ::= "a\U00000022" | ("\U0000005c" "b")'


@pytest.mark.parametrize(
    ("source", "passed_on"),
    [
        pytest.param("[^a-z\n\r]", r"[^a-z\n\r]", id="a line break in a class"),
        pytest.param("\\\n", r"\n", id="one that is escaped already"),
        pytest.param("\\\\\n", r"\\\n", id="one after an escaped backslash"),
        pytest.param("[\\\n\\\\\n]", r"[\n\\\n]", id="both in a class"),
        pytest.param(r"\n[\]\d]\\", r"\n[\]\d]\\", id="nothing to change"),
        pytest.param(r"a.+\.[.\].]", r"a[^\n]+\.[.\].]", id="a dot is any character but a line break"),
        pytest.param(r"\xdfe[\xdfa]\\xdf", r"\u00dfe[\u00dfa]\\xdf", id="two digits after an x"),
    ],
)
def test_a_regex_means_the_usual(source: str, passed_on: str) -> None:
    assert usual_regex(source) == passed_on


@pytest.mark.parametrize(
    ("source", "passed_on"),
    [
        pytest.param('root ::= "ße"*', 'root ::= ("ß" "e")*', id="cut after a letter"),
        pytest.param(r'root ::= "\u00dfe"', r'root ::= ("\u00df" "e")', id="cut after an escape"),
        pytest.param(r'root ::= "\xdfe"', r'root ::= ("\xdf" "e")', id="two digits after an x"),
        pytest.param(r'root ::= "\\xdf\""', r'root ::= "\\xdf\""', id="no escape of a character"),
        pytest.param('root ::= ["ßa] "ß" # "ße"', 'root ::= ["ßa] "ß" # "ße"', id="no literal"),
        pytest.param('root ::= "" | "ab"', 'root ::= "" | "ab"', id="plain"),
    ],
)
def test_a_grammar_s_literals_are_cut_where_they_would_be_misread(source: str, passed_on: str) -> None:
    assert usual_ebnf(source) == passed_on


@pytest.mark.parametrize(
    ("schema", "found"),
    [
        ({"type": "object", "properties": {"größe": {}}}, "größe"),
        ({"items": [{"anyOf": [{"const": {"a": ["Übergabe"]}}]}]}, "Übergabe"),
        ({"enum": [1, None, "é1"]}, "é1"),
        ({"enum": ["日a", "naïve", "ü"], "title": "ße", "pattern": "ße"}, None),
        ([], None),
    ],
)
def test_names_and_constants_that_would_be_misspelt_are_found(schema: Any, found: str | None) -> None:
    assert misspelt(schema) == found


@pytest.mark.parametrize(
    ("grammar", "text"),
    [
        (Grammar(kind=GrammarKind.CHOICES, texts=("Übergabe", "Fédération 1")), None),
        (Grammar(kind=GrammarKind.EBNF, source='root ::= "ße" "é1" | "Äa"'), None),
        (Grammar(kind=GrammarKind.REGEX, source=r"\xdfe[é]1"), "ßeé1"),
        (Grammar(kind=GrammarKind.JSON_SCHEMA, source=json.dumps({"const": "naïve 日a"})), '"naïve 日a"'),
    ],
)
async def test_the_pipeline_writes_what_the_grammar_says(tmp_path: Path, grammar: Grammar, text: str | None) -> None:
    expected = {"Übergabe", "Fédération 1", "ßeé1", "Äa"} if text is None else {text}
    async with running(byte_model_options(write_random_model(tmp_path / "random.gguf"))) as engine:
        await engine.check(grammar)
        written = await run(engine, a_request([5], 40, grammar=grammar))

    assert text_of(written.token_ids) in expected
    assert written.finished.reason is FinishReason.STOP


async def test_what_cannot_be_spelled_is_refused(tmp_path: Path) -> None:
    schema = Grammar(kind=GrammarKind.JSON_SCHEMA, source=json.dumps({"enum": ["größe"]}))
    async with running(byte_model_options(write_random_model(tmp_path / "random.gguf"))) as engine:
        with pytest.raises(InvalidRequest, match="größe"):
            await engine.check(schema)
