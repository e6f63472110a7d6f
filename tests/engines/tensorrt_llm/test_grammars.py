"""Grammars are compiled before a request carries one."""

from __future__ import annotations

from pathlib import Path

import pytest
from inferwire_server.domain.errors import InvalidRequest
from inferwire_server.domain.generation import Grammar, GrammarKind
from inferwire_server.engines.tensorrt_llm.checkpoint import Checkpoint
from inferwire_server.engines.tensorrt_llm.engine import TensorRTEngine
from inferwire_server.engines.tensorrt_llm.options import Options

CHECKPOINT = Checkpoint(folder=Path("model"), vocabulary_size=64, end_token_ids=frozenset({2}), max_context_tokens=64)


async def check(backend: str, kind: str, source: str = "", texts: tuple[str, ...] = ()) -> None:
    engine = TensorRTEngine(CHECKPOINT, Options(guided_decoding=backend))
    await engine.check(Grammar(kind=GrammarKind(kind), source=source, texts=texts))


@pytest.mark.parametrize("backend", ["xgrammar", "llguidance"])
async def test_what_compiles_is_taken(backend: str) -> None:
    await check(backend, "json_schema", '{"type": "object"}')
    await check(backend, "regex", "[0-9]{3}")
    await check(backend, "choices", texts=("yes", "no"))


async def test_an_ebnf_is_taken_where_it_is_read() -> None:
    await check("xgrammar", "ebnf", 'root ::= "red" | "green"')
    with pytest.raises(InvalidRequest, match=r"structured_output\.ebnf: not supported"):
        await check("llguidance", "ebnf", 'root ::= "red"')


@pytest.mark.parametrize(
    ("kind", "source"),
    [("json_schema", '{"type": 12}'), ("json_schema", "{"), ("regex", "(["), ("ebnf", 'root ::= "a')],
)
async def test_what_does_not_compile_is_refused(kind: str, source: str) -> None:
    with pytest.raises(InvalidRequest, match=f"structured_output.{kind}: cannot be compiled"):
        await check("xgrammar", kind, source)


async def test_without_a_backend_every_grammar_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="not supported by this model"):
        await check("none", "regex", "a")
