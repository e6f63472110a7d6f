"""The first checks of a structured-output constraint: limits, and no keyword that would be ignored."""

from __future__ import annotations

import json
from typing import Any, NoReturn

from llguidance import LLMatcher

from inferwire_server.domain.errors import InvalidRequest
from inferwire_server.domain.generation import Grammar, GrammarKind
from inferwire_server.domain.limits import LIMITS
from inferwire_server.text.json_schema import UnsupportedSchema, check_schema

_LONGEST_REASON = 160


def check_grammar(grammar: Grammar) -> None:
    """Raise InvalidRequest for what no engine would compile or honour in full; says nothing of an engine's time.

    Takes up to 0.1 s for the largest schemas, so it is not for the serving loop. Regular expressions and EBNF differ
    between engines: only their size is checked, the engine's own check decides.
    """
    field = f"structured_output.{grammar.kind.value}"
    if grammar.kind is GrammarKind.CHOICES:
        _check_choices(grammar.texts)
        return
    limits = {
        GrammarKind.JSON_SCHEMA: LIMITS.json_schema_bytes,
        GrammarKind.REGEX: LIMITS.regex_bytes,
        GrammarKind.EBNF: LIMITS.ebnf_bytes,
    }
    _check_size(field, grammar.source, limits[grammar.kind])
    if grammar.kind is GrammarKind.JSON_SCHEMA:
        _check_json_schema(field, grammar.source)


def _check_choices(texts: tuple[str, ...]) -> None:
    field = "structured_output.choices.texts"
    if not 1 <= len(texts) <= LIMITS.choices:
        raise InvalidRequest(field, f"must be 1 to {LIMITS.choices} texts", limit=LIMITS.choices, actual=len(texts))
    for index, text in enumerate(texts):
        if not 1 <= len(text) <= LIMITS.choice_length:
            raise InvalidRequest(
                f"{field}[{index}]",
                f"must be 1 to {LIMITS.choice_length} characters",
                limit=LIMITS.choice_length,
                actual=len(text),
            )
        if text in texts[:index]:
            raise InvalidRequest(f"{field}[{index}]", "is there twice")


def _check_size(field: str, source: str, limit: int) -> None:
    try:
        size = len(source.encode())
    except UnicodeEncodeError:
        raise InvalidRequest(field, "must be well-formed Unicode") from None
    if not 1 <= size <= limit:
        raise InvalidRequest(field, f"must be 1 to {limit} bytes", limit=limit, actual=size)


def _check_json_schema(field: str, source: str) -> None:
    try:
        schema = json.loads(source, object_pairs_hook=_without_duplicates, parse_constant=_refuse_constant)
    except UnsupportedSchema as unsupported:
        raise InvalidRequest(field, str(unsupported)) from None
    except (ValueError, RecursionError):
        raise InvalidRequest(field, "must be JSON") from None
    if not isinstance(schema, dict):
        raise InvalidRequest(field, "must be a JSON object")
    try:
        check_schema(schema)
    except UnsupportedSchema as unsupported:
        raise InvalidRequest(field, str(unsupported)) from None
    try:
        compiled = LLMatcher.grammar_from_json_schema(source, overrides={"lenient": False, "coerce_one_of": False})
        _, complaints = LLMatcher.validate_grammar_with_warnings(compiled)
    except ValueError as error:
        complaints = [str(error)]
    if complaints:
        raise InvalidRequest(field, f"cannot be enforced: {' '.join(complaints[0].split())[:_LONGEST_REASON]}")


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        raise UnsupportedSchema("an object names the same member twice")
    return content


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(name)
