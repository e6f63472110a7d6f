"""A structured-output constraint is honoured in full or refused before it reaches an engine."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from inferwire_server.domain.errors import InvalidRequest
from inferwire_server.domain.generation import Grammar, GrammarKind
from inferwire_server.domain.limits import LIMITS
from inferwire_server.text.grammar import check_grammar

FIELD = "structured_output.json_schema"
CLOSED = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"], "additionalProperties": False}


def check_schema(schema: Any) -> None:
    source = schema if isinstance(schema, str) else json.dumps(schema)
    check_grammar(Grammar(kind=GrammarKind.JSON_SCHEMA, source=source))


def refusal_of(schema: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as refusal:
        check_schema(schema)
    return refusal.value


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


@pytest.mark.parametrize(
    "schema",
    [
        {},
        CLOSED,
        {"type": "array", "items": CLOSED, "minItems": 1, "maxItems": 3},
        {"type": "array", "prefixItems": [{"type": "boolean"}], "items": False},
        {"type": "object", "additionalProperties": {"type": "integer", "minimum": 0, "exclusiveMaximum": 9}},
        {"type": ["string", "null"], "maxLength": 20},
        {"type": "string", "pattern": "^[a-z]{2,5}$"},
        {"type": "string", "format": "date-time"},
        {"type": "string", "enum": ["a", "b"], "title": "T", "description": "d", "default": "a", "x-unit": "cm"},
        {"type": ["integer", "null"], "enum": [1, None]},
        {"const": {"a": [1]}},
        {"anyOf": [CLOSED, {"type": "null"}]},
        {"allOf": [{"$ref": "#/$defs/a"}], "$defs": {"a": CLOSED}},
        {"definitions": {"a/b": {"type": "null"}}, "$ref": "#/definitions/a~1b"},
        {"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}}},
        {"oneOf": [{"const": "a"}, {"const": "b"}], "discriminator": {"propertyName": "k"}},
        nested(LIMITS.json_schema_depth // 2 - 1),
    ],
)
def test_schemas_that_engines_enforce_are_taken(schema: dict[str, Any]) -> None:
    check_schema(schema)


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"not": {"type": "string"}}, "at #: 'not' is not supported"),
        ({"type": "array", "uniqueItems": True}, "'uniqueItems' is not supported"),
        ({"type": "object", "properties": {"a": {"if": True}}}, "at #/properties/a: 'if' is not supported"),
        ({"type": "string", "maxlength": 3}, "'maxlength' is not supported"),
        ({"type": "string", "nullable": True}, "'nullable' is not supported"),
        ({"type": "integer", "multipleOf": 7}, "'multipleOf' is not supported"),
        ({"type": "object", "patternProperties": {"a": {}}}, "'patternProperties' is not supported"),
        ({"type": "string", "x-guidance": {"lenient": True}}, "'x-guidance' is not supported"),
        ({"$id": "http://example.com/a"}, "'$id' is not supported"),
    ],
)
def test_a_keyword_that_nothing_would_enforce_is_refused_by_name(schema: dict[str, Any], reason: str) -> None:
    refusal = refusal_of(schema)
    assert refusal.field == FIELD
    assert reason in refusal.violation


@pytest.mark.parametrize(
    "schema",
    [
        {**CLOSED, "allOf": [{"required": ["b"]}]},
        {**CLOSED, "anyOf": [{"required": ["b"]}]},
        {"enum": ["a", "bbb"], "minLength": 2},
        {"type": "integer", "enum": ["x", 1]},
        {"type": "integer", "const": True},
        {"$defs": {"s": {"type": "string"}}, "$ref": "#/$defs/s", "maxLength": 2},
        {"type": "string", "anyOf": [{"type": "string"}, {"type": "integer"}]},
        {"allOf": [{"type": "object"}, {"required": ["a"]}]},
        {"type": "string", "pattern": "a+", "maxLength": 3},
        {"type": "string", "format": "email", "maxLength": 5},
        {"type": "number", "maximum": 2.5},
        {"type": ["integer", "number"], "minimum": 1},
        {"maxLength": 2},
        {"minimum": 2},
    ],
)
def test_a_keyword_that_would_be_ignored_where_it_stands_is_refused(schema: dict[str, Any]) -> None:
    assert refusal_of(schema).field == FIELD


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"anyOf": [{"$ref": "#"}, {"type": "null"}]},
        {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"allOf": [{"$ref": "#/$defs/a"}]}}, "$ref": "#/$defs/a"},
    ],
)
def test_a_schema_that_is_only_itself_is_refused(schema: dict[str, Any]) -> None:
    assert "refers to itself" in refusal_of(schema).violation


@pytest.mark.parametrize("target", ["http://example.com/a", "#/$defs/b", "#/default", "#a", 7, ["#"]])
def test_a_reference_must_name_a_schema_of_the_document(target: object) -> None:
    refusal = refusal_of({"properties": {"a": {"$ref": target}}, "default": {"not": {}}})
    assert "$ref must name a schema in this document" in refusal.violation


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        (nested(LIMITS.json_schema_depth // 2), "nested more than 64 levels deep"),
        ('{"items":' * 5000 + "{}" + "}" * 5000, "must be JSON"),
        ({"default": nested(40)}, "nested more than 64 levels deep"),
        ({"properties": {str(i): {} for i in range(LIMITS.json_schema_properties + 1)}}, "more than 256 properties"),
        ({"type": "string", "maxLength": LIMITS.json_schema_count + 1}, "maxLength must be a whole number up to 1000"),
        ({"type": "array", "minItems": -1}, "minItems must be a whole number up to 1000"),
        ({"enum": list(range(LIMITS.json_schema_count + 1))}, "enum has more than 1000 members"),
    ],
    ids=["depth", "depth beyond Python's", "depth of a default", "properties", "length", "negative", "values"],
)
def test_a_schema_beyond_the_limits_is_refused(schema: Any, reason: str) -> None:
    assert reason in refusal_of(schema).violation


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("{", "must be JSON"),
        ("[]", "must be a JSON object"),
        ("true", "must be a JSON object"),
        ('{"const": NaN}', "must be JSON"),
        ('{"type": "object", "type": "string"}', "names the same member twice"),
        ('{"const": "\ud800"}', "must be well-formed Unicode"),
        ('{"const": "\\ud800"}', "cannot be enforced"),
        ('{"type": "string", "pattern": "(?=a)b"}', "cannot be enforced: regex parse error"),
        ('{"type": "string", "format": "zipcode"}', "cannot be enforced: Unknown format"),
        ('{"type": "integer", "minimum": 5, "maximum": 3}', "cannot be enforced: Unsatisfiable"),
    ],
)
def test_what_is_no_schema_is_refused_with_the_reason(source: str, reason: str) -> None:
    assert reason in refusal_of(source).violation


@pytest.mark.parametrize(
    ("kind", "limit"),
    [
        (GrammarKind.JSON_SCHEMA, LIMITS.json_schema_bytes),
        (GrammarKind.REGEX, LIMITS.regex_bytes),
        (GrammarKind.EBNF, LIMITS.ebnf_bytes),
    ],
)
@pytest.mark.parametrize("size", [0, 1])
def test_a_source_is_bounded_in_bytes(kind: GrammarKind, limit: int, size: int) -> None:
    source = "é" * (limit // 2 + 1) if size else ""
    with pytest.raises(InvalidRequest) as refusal:
        check_grammar(Grammar(kind=kind, source=source))
    assert refusal.value.field == f"structured_output.{kind.value}"
    assert refusal.value.limit == limit


def test_regular_expressions_and_ebnf_are_left_to_the_engine() -> None:
    check_grammar(Grammar(kind=GrammarKind.REGEX, source="(?i)\\p{L}++"))
    check_grammar(Grammar(kind=GrammarKind.EBNF, source="root ::= "))


def test_choices_are_texts_within_bounds() -> None:
    check_grammar(Grammar(kind=GrammarKind.CHOICES, texts=("yes", "no", "é" * LIMITS.choice_length)))


@pytest.mark.parametrize(
    ("texts", "field"),
    [
        ((), "structured_output.choices.texts"),
        (("a",) * (LIMITS.choices + 1), "structured_output.choices.texts"),
        (("a", ""), "structured_output.choices.texts[1]"),
        (("a", "b", "a"), "structured_output.choices.texts[2]"),
        (("a" * (LIMITS.choice_length + 1),), "structured_output.choices.texts[0]"),
    ],
)
def test_choices_out_of_bounds_are_refused_where_they_are(texts: tuple[str, ...], field: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        check_grammar(Grammar(kind=GrammarKind.CHOICES, texts=texts))
    assert refusal.value.field == field


KEYWORDS = [
    "type",
    "properties",
    "items",
    "anyOf",
    "enum",
    "const",
    "$ref",
    "$defs",
    "maxLength",
    "pattern",
    "required",
]
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 5) | st.sampled_from(["#", "string", "object", "a", "#/$defs/a"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*KEYWORDS, "a"]), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(KEYWORDS), VALUES, max_size=4))
def test_whatever_is_sent_as_a_schema_is_taken_or_refused(schema: dict[str, Any]) -> None:
    try:
        check_schema(schema)
    except InvalidRequest:
        return
    jsonschema.Draft202012Validator.check_schema(schema)
