"""Grammars to try a server with: hostile ones, generated ones, and what tells whether an output obeys."""

from __future__ import annotations

import json
import random
import re
from dataclasses import dataclass
from typing import Any

import jsonschema
import llguidance


@dataclass(frozen=True, slots=True)
class Constraint:
    """One `StructuredOutput`: the name of its format and its source."""

    format: str
    source: str

    @property
    def message(self) -> dict[str, Any]:
        """As a field of a request."""
        return {self.format: self.source}

    def holds(self, text: str) -> bool:
        """Whether a whole output obeys."""
        if self.format == "regex":
            return re.fullmatch(self.source, text) is not None
        if self.format == "json_schema":
            jsonschema.validate(json.loads(text), json.loads(self.source))
        return self.begins(text)

    def begins(self, text: str) -> bool:
        """Whether an output may go on to obey, by llguidance."""
        if self.format == "json_schema":
            grammar = llguidance.LLMatcher.grammar_from_json_schema(self.source)
        else:
            grammar = llguidance.grammar_from("ebnf" if self.format == "ebnf" else "regex", self.source)
        matcher = llguidance.LLMatcher(_BYTES, grammar, log_level=0)
        content = list(text.rstrip("\ufffd").encode())  # what is left of a character that was cut off
        return int(matcher.validate_tokens(content)) == len(content)


class _ByteVocabulary:
    """One token a byte, and one for the end."""

    def __init__(self) -> None:
        self.eos_token_id = 256
        self.bos_token_id = None
        self.tokens = [*(bytes((byte,)) for byte in range(256)), b"<end>"]
        self.special_token_ids = [256]

    def __call__(self, text: bytes | str) -> list[int]:
        return list(text.encode() if isinstance(text, str) else text)


_BYTES = llguidance.LLTokenizer(llguidance.TokenizerWrapper(_ByteVocabulary()), slices=[])


def _schema(**content: Any) -> Constraint:
    return Constraint("json_schema", json.dumps(content))


def _properties(count: int) -> dict[str, Any]:
    return {f"name{number}": {"type": "string"} for number in range(count)}


def _nested(depth: int) -> Constraint:
    return Constraint("json_schema", '{"type":"array","items":' * depth + '{"type":"null"}' + "}" * depth)


HOSTILE = [
    *(_schema(type="string", maxLength=length) for length in (256, 1_000, 100_000)),
    *(_schema(type="object", properties=_properties(count), required=["name1"]) for count in (60, 250, 500, 2_000)),
    *(_nested(depth) for depth in (60, 300, 3_000)),
    Constraint("json_schema", '{"$ref": "#"}'),
    _schema(type="array", items={"$ref": "#"}),
    _schema(**{"not": {"type": "string"}}),
    _schema(type="array", uniqueItems=True),
    _schema(type="object", allOf=[{"required": ["a"]}], properties={"a": {"type": "integer"}}),
    _schema(type="array", items={"type": "string", "maxLength": 1_000}, maxItems=1_000),
    _schema(type="integer", multipleOf=0.0001, minimum=-1e300, maximum=1e300),
    _schema(type=12),
    _schema(anyOf=[{"type": "string", "maxLength": length} for length in range(1, 200)]),
    Constraint("json_schema", "{"),
    Constraint("json_schema", "[" * 20_000),
    Constraint("json_schema", '{"type": "string", "pattern": "' + "(a?){40}" * 40 + 'b"}'),
    Constraint("json_schema", '{"type": "string", "pattern": "(("}'),
    *(
        Constraint("regex", source)
        for source in (r"\p{L}{1,9}", "(?i)yes", "a++", "(|a)", "([", "", "(a|a?)+b", "a{0}")
    ),
    Constraint("regex", "(a{1,100}){1,100}"),
    Constraint("regex", "((((a{1,30}){1,30}){1,30}){1,30}){1,30}"),
    Constraint("regex", "(.*)(.*)(.*)(.*)(.*)(.*)[ab]{200}c"),
    Constraint("regex", "(?=a)b"),
    Constraint("regex", "|".join(f"word{number}" for number in range(900))),
    *(Constraint("ebnf", source) for source in ('root ::= "a', "root ::= ", "", "root ::= root", "root ::= missing")),
    Constraint("ebnf", 'root ::= root "a" | "a"'),
    Constraint("ebnf", 'root ::= a a a a a a\na ::= b b b b b b\nb ::= c c c c c c\nc ::= "x" | "x" c'),
    Constraint(
        "ebnf", 'root ::= ("a" | "b")* "c"\n' + "".join(f'r{number} ::= "{number}"\n' for number in range(2_000))
    ),
]
"""Costly, malformed, without end, or with what engines ignore in silence."""


def generated(seed: int, count: int) -> list[Constraint]:
    """Constraints that a server should take, half of them JSON schemas; all from the seed."""
    source = random.Random(seed)
    makers = [_random_schema, _random_schema, _random_regex, _random_ebnf]
    return [makers[number % len(makers)](source) for number in range(count)]


def _random_schema(source: random.Random) -> Constraint:
    return Constraint("json_schema", json.dumps(_value(source, 0)))


def _value(source: random.Random, depth: int) -> dict[str, Any]:
    kinds = ["string", "integer", "boolean", "null", "enum", "number"]
    kind = source.choice(["object", "array", "anyOf"] if depth == 0 else kinds + ["object", "array"] * (depth < 3))
    if kind == "object":
        names = source.sample(["city", "höhe", "a b", "id", "naïve"], source.randint(1, 3))
        properties = {name: _value(source, depth + 1) for name in names}
        return {"type": "object", "properties": properties, "required": names, "additionalProperties": False}
    if kind == "array":
        least = source.randint(0, 2)
        items = _value(source, depth + 1)
        return {"type": "array", "items": items, "minItems": least, "maxItems": least + source.randint(1, 2)}
    if kind == "anyOf":
        return {"anyOf": [_value(source, depth + 1) for _ in range(source.randint(1, 3))]}
    if kind == "enum":
        return {"enum": source.sample(["red", "green", 7, None, True, "ü"], source.randint(1, 4))}
    if kind == "string":
        return {"type": "string", "minLength": source.randint(0, 3), "maxLength": source.randint(3, 9)}
    if kind == "integer":
        low = source.randint(-50, 50)
        return {"type": "integer", "minimum": low, "maximum": low + source.randint(0, 900)}
    return {"type": kind}


def _random_regex(source: random.Random) -> Constraint:
    parts = [
        source.choice(("[a-f]", "[0-9]", "(yes|no)", "x", " ", "(é|ü)", "[^a-z\n]")) + f"{{{low},{low + more}}}"
        for low, more in ((source.randint(0, 3), source.randint(1, 3)) for _ in range(source.randint(1, 4)))
    ]
    return Constraint("regex", "".join([*parts, "."]))


def _random_ebnf(source: random.Random) -> Constraint:
    words = source.sample(["red", "green", "7", "up", "down"], source.randint(2, 4))
    alternatives = " | ".join(f'"{word}"' for word in words)
    tail = source.choice(('" " word', 'word "," word', '"(" word ")"'))
    return Constraint("ebnf", f"root ::= word {tail}\nword ::= {alternatives}\n")
