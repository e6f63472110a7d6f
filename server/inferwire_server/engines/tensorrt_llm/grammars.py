"""Grammars in the engine's words, and whether they compile, asked before any request carries one."""

from __future__ import annotations

import json
import re

from llguidance import LLMatcher
from llguidance.gbnf_to_lark import any_to_lark

from inferwire_server.domain.errors import InvalidRequest
from inferwire_server.domain.generation import Grammar, GrammarKind

KINDS = {
    "none": frozenset[GrammarKind](),
    "xgrammar": frozenset({GrammarKind.JSON_SCHEMA, GrammarKind.REGEX, GrammarKind.EBNF, GrammarKind.CHOICES}),
    "llguidance": frozenset({GrammarKind.JSON_SCHEMA, GrammarKind.REGEX, GrammarKind.CHOICES}),
}
"""By the option `guided_decoding`. llguidance reads Lark, which is not the EBNF of the contract."""


def guide(grammar: Grammar, backend: str) -> dict[str, object]:
    """Keywords of GuidedDecodingParams."""
    if grammar.kind is GrammarKind.JSON_SCHEMA:
        return {"json": grammar.source}
    if grammar.kind is GrammarKind.REGEX:
        return {"regex": grammar.source}
    if grammar.kind is GrammarKind.EBNF:
        return {"grammar": grammar.source}
    if backend == "xgrammar":
        return {"grammar": "root ::= " + " | ".join(json.dumps(text, ensure_ascii=False) for text in grammar.texts)}
    return {"regex": "|".join(f"({re.escape(text)})" for text in grammar.texts)}


def require_compilable(grammar: Grammar) -> None:
    """Raise InvalidRequest for a grammar that llguidance cannot compile.

    It stands in for xgrammar too: the few grammars on which the two differ are refused by the engine itself, later
    and for that request alone.
    """
    if grammar.kind is GrammarKind.CHOICES:
        return
    try:
        problem = LLMatcher.validate_grammar(_compiled(grammar))
    except Exception as error:  # noqa: BLE001 - JSON, the EBNF reader and the compiler each raise their own kind
        problem = str(error)
    if problem:
        raise InvalidRequest(f"structured_output.{grammar.kind.value}", "cannot be compiled")


def _compiled(grammar: Grammar) -> str:
    if grammar.kind is GrammarKind.JSON_SCHEMA:
        json.loads(grammar.source)
        return LLMatcher.grammar_from_json_schema(grammar.source)
    if grammar.kind is GrammarKind.REGEX:
        return LLMatcher.grammar_from_regex(grammar.source)
    return LLMatcher.grammar_from_lark(any_to_lark(grammar.source))
