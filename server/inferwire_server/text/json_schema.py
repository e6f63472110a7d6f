"""Which JSON schemas the engines' compilers enforce in full: the rest is refused, so that no keyword is ignored.

The compiler behind both real engines (xgrammar) passes over keywords that it does not know, and over all that stand
beside `anyOf`, `enum` and the like. What is allowed here was tried on it; what it ignored is not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from itertools import chain
from typing import Any

from inferwire_server.domain.limits import LIMITS

Schema = Mapping[str, Any]

_ANNOTATIONS = frozenset(
    {"$comment", "$schema", "contentEncoding", "contentMediaType", "default", "deprecated", "description"}
    | {"discriminator", "example", "examples", "readOnly", "title", "writeOnly"}
)
_DEFINITIONS = frozenset({"$defs", "definitions"})
_WHOLE = frozenset({"$ref", "allOf", "anyOf", "const", "enum", "oneOf"})
"""Keywords beside which all others are ignored."""
_VALUES = frozenset({"const", "enum"})
_CHOICES = frozenset({"allOf", "anyOf", "oneOf"})
_COUNTS = frozenset({"maxItems", "maxLength", "minItems", "minLength"})
_BOUNDS = frozenset({"exclusiveMaximum", "exclusiveMinimum", "maximum", "minimum"})
_TEXTS = frozenset({"format", "maxLength", "minLength", "pattern"})
_OTHERS = frozenset({"additionalProperties", "items", "prefixItems", "properties", "required", "type"})
_KNOWN = _ANNOTATIONS | _DEFINITIONS | _WHOLE | _COUNTS | _BOUNDS | _TEXTS | _OTHERS
_NEEDED_TYPES = {**dict.fromkeys(_TEXTS, "string"), **dict.fromkeys(_BOUNDS, "integer")}
_TYPES_OF_VALUES: dict[str, type | tuple[type, ...]] = {
    "array": list,
    "boolean": bool,
    "integer": int,
    "null": type(None),
    "number": (int, float),
    "object": dict,
    "string": str,
}


class UnsupportedSchema(Exception):
    """The message says where and what, in the schema's own words."""


@dataclass(slots=True)
class _Walk:
    properties: int = 0
    schemas: dict[str, Schema] = field(default_factory=dict)
    """By JSON pointer, as `$ref` names them."""


def check_schema(schema: Schema) -> None:
    """Raise UnsupportedSchema for the first thing that is too large, unknown or not enforced."""
    _refuse_deep(schema)
    walk = _Walk()
    _visit(schema, "#", walk)
    _refuse_endless_references(walk.schemas)


def _refuse_deep(schema: Schema) -> None:
    level: list[Any] = [schema]
    for _ in range(LIMITS.json_schema_depth):
        members = chain.from_iterable(item.values() if isinstance(item, dict) else item for item in level)
        level = [member for member in members if isinstance(member, dict | list)]
    if level:
        raise UnsupportedSchema(f"nested more than {LIMITS.json_schema_depth} levels deep")


def _visit(schema: Any, pointer: str, walk: _Walk) -> None:
    if isinstance(schema, bool):
        return
    if not isinstance(schema, dict):
        raise UnsupportedSchema(f"at {pointer}: a schema must be an object or a boolean")
    walk.schemas[pointer] = schema
    for keyword in schema:
        if keyword not in _KNOWN and (not keyword.startswith("x-") or keyword == "x-guidance"):
            raise UnsupportedSchema(f"at {pointer}: {keyword!r} is not supported")
    _check_counts(schema, pointer)
    _check_neighbours(schema, pointer)
    walk.properties += _size(schema.get("properties"))
    if walk.properties > LIMITS.json_schema_properties:
        raise UnsupportedSchema(f"has more than {LIMITS.json_schema_properties} properties")
    for step, inner in _inner_schemas(schema, pointer):
        _visit(inner, f"{pointer}/{step}", walk)


def _check_counts(schema: Schema, pointer: str) -> None:
    for keyword in _COUNTS & schema.keys():
        value = schema[keyword]
        if not isinstance(value, int) or not 0 <= value <= LIMITS.json_schema_count:
            raise UnsupportedSchema(f"at {pointer}: {keyword} must be a whole number up to {LIMITS.json_schema_count}")
    for keyword in ("enum", *_CHOICES):
        if _size(schema.get(keyword)) > LIMITS.json_schema_count:
            raise UnsupportedSchema(f"at {pointer}: {keyword} has more than {LIMITS.json_schema_count} members")


def _check_neighbours(schema: Schema, pointer: str) -> None:
    constraints = {key for key in schema.keys() - _ANNOTATIONS - _DEFINITIONS if not key.startswith("x-")}
    whole = sorted(constraints & _WHOLE)
    if whole:
        beside = constraints - {whole[0]}
        if beside and not (beside == {"type"} and _is_implied_type(schema, whole[0], pointer)):
            raise UnsupportedSchema(f"at {pointer}: {min(beside)!r} would be ignored beside {whole[0]!r}")
        if _size(schema.get("allOf")) > 1:
            raise UnsupportedSchema(f"at {pointer}: 'allOf' is supported with one member only")
        return
    types = _types(schema, pointer)
    for keyword in sorted(constraints & _NEEDED_TYPES.keys()):
        if not types:
            raise UnsupportedSchema(f'at {pointer}: {keyword!r} needs "type": "{_NEEDED_TYPES[keyword]}" beside it')
        if keyword in _BOUNDS and "number" in types:
            raise UnsupportedSchema(f"at {pointer}: {keyword!r} is supported for integers only")
    if len(constraints & {"pattern", "format"}) == 2 or (
        constraints & {"pattern", "format"} and constraints & {"minLength", "maxLength"}
    ):
        raise UnsupportedSchema(f"at {pointer}: only one of pattern, format and lengths is supported")


def _types(schema: Schema, pointer: str) -> list[str]:
    types = schema.get("type", [])
    types = [types] if isinstance(types, str) else types
    if not isinstance(types, list) or not set(map(str, types)) <= _TYPES_OF_VALUES.keys():
        raise UnsupportedSchema(f"at {pointer}: type must be among {', '.join(_TYPES_OF_VALUES)}")
    return types


def _is_implied_type(schema: Schema, keyword: str, pointer: str) -> bool:
    """Whether all the values that `enum` or `const` allow are of the type anyway."""
    if keyword not in _VALUES:
        return False
    values = schema["enum"] if keyword == "enum" else [schema["const"]]
    types = _types(schema, pointer)
    return isinstance(values, list) and all(any(_is_of_type(value, name) for name in types) for value in values)


def _is_of_type(value: Any, name: str) -> bool:
    if isinstance(value, bool):
        return name == "boolean"
    return isinstance(value, _TYPES_OF_VALUES[name])


def _inner_schemas(schema: Schema, pointer: str) -> Iterator[tuple[str, Any]]:
    for keyword in ("properties", *_DEFINITIONS):
        inner = schema.get(keyword, {})
        if not isinstance(inner, dict):
            raise UnsupportedSchema(f"at {pointer}: {keyword} must be an object")
        for name, member in inner.items():
            yield f"{keyword}/{name.replace('~', '~0').replace('/', '~1')}", member
    for keyword in ("prefixItems", *_CHOICES):
        members = schema.get(keyword, [])
        if not isinstance(members, list):
            raise UnsupportedSchema(f"at {pointer}: {keyword} must be a list")
        for index, member in enumerate(members):
            yield f"{keyword}/{index}", member
    for keyword in ("items", "additionalProperties"):
        if keyword in schema:
            yield keyword, schema[keyword]


def _refuse_endless_references(schemas: Mapping[str, Schema]) -> None:
    """A schema that is itself before any value is begun has no meaning, and compiles to garbage."""
    same_value: dict[str, list[str]] = {}
    for pointer, schema in schemas.items():
        members = [f"{pointer}/{keyword}/{i}" for keyword in _CHOICES for i in range(_size(schema.get(keyword)))]
        same_value[pointer] = [*members, *_targets(schema, pointer, schemas)]
    try:
        TopologicalSorter(same_value).prepare()
    except CycleError as error:
        pointer = min(error.args[1])
        raise UnsupportedSchema(f"at {pointer}: refers to itself without an object or a list between") from None


def _targets(schema: Schema, pointer: str, schemas: Mapping[str, Schema]) -> list[str]:
    if "$ref" not in schema:
        return []
    reference = schema["$ref"]
    if not isinstance(reference, str) or reference not in schemas:
        raise UnsupportedSchema(f"at {pointer}: $ref must name a schema in this document, as in #/$defs/name")
    return [reference]


def _size(value: Any) -> int:
    return len(value) if isinstance(value, list | dict) else 0
