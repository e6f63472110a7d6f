r"""What the pipeline's grammar compiler reads otherwise than everybody, put right or refused. Pure.

OpenVINO GenAI 2026.4 (its xgrammar) writes a character from U+0080 to U+00FF as `\x` and two digits and then reads as
many digits as follow: "ße" becomes U+0DFE. In a regex a dot is any character, and a line break in a class an error.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

from inferwire_server.domain.generation import Grammar, GrammarKind
from inferwire_server.engines.openvino.empty_grammar import derives_nothing

_REGEX_PART = re.compile(r"\\x[0-9A-Fa-f]{2}|\\.|\[(?:\\.|[^\]\\])*\]|[.\n\r]", re.DOTALL)
"""An escape, a character class, or a character that has to be written otherwise."""
_CHARACTER = re.compile(r"\\x([0-9A-Fa-f]{2})|\\?([\n\r])|\\.", re.DOTALL)
_EBNF_PART = re.compile(r'\[(?:\\.|[^\]\\])*\]|#[^\n]*|"((?:\\.|[^"\\\n])*)"', re.DOTALL)
"""A character class, a comment, or a literal."""
_UNIT = re.compile(r"\\x[0-9A-Fa-f]{1,2}|\\u[0-9A-Fa-f]{4}|\\U[0-9A-Fa-f]{8}|\\.|.", re.DOTALL)
_MISSPELT = re.compile("[\u0080-\u00ff][0-9A-Fa-f]")
_BREAKS = {"\n": r"\n", "\r": r"\r"}


def usual_regex(source: str) -> str:
    """A regex that means to the compiler what `source` means elsewhere."""
    return _REGEX_PART.sub(lambda part: r"[^\n]" if part[0] == "." else _CHARACTER.sub(_spelled_out, part[0]), source)


def usual_ebnf(source: str) -> str:
    """A grammar with its literals cut after each character that must not touch the next."""
    return _EBNF_PART.sub(lambda part: part[0] if part[1] is None else _literal(_UNIT.findall(part[1])), source)


def choices_grammar(texts: Iterable[str]) -> str:
    """An EBNF grammar that accepts exactly these texts."""
    return "root ::= " + " | ".join(_literal([*map(_escaped, text)]) for text in texts)


def misspelt(schema: Any) -> str | None:
    """A name or constant of a decoded JSON schema that would be misspelt; None without one."""
    if isinstance(schema, list):
        return next(filter(None, map(misspelt, schema)), None)
    if not isinstance(schema, dict):
        return None
    fixed = [*schema.get("properties", ()), *_strings(schema.get("enum")), *_strings(schema.get("const"))]
    return next(filter(_MISSPELT.search, fixed), None) or misspelt([*schema.values()])


def misreading(grammar: Grammar) -> str:
    """What the compiler would take otherwise than meant, and nothing can put right; empty for nothing."""
    if grammar.kind is GrammarKind.EBNF and derives_nothing(grammar.source):
        return "derives no text at all: give each rule a way to end"
    if grammar.kind is not GrammarKind.JSON_SCHEMA:
        return ""
    try:
        found = misspelt(json.loads(grammar.source))
    except (ValueError, RecursionError):
        return ""  # the compiler says what is wrong with it
    if not found:
        return ""
    problem = f"this model’s engine cannot spell the name or constant {found[:40]!r}"
    return f"{problem}: a letter like é or ß before a digit or one of the letters a to f"


def _spelled_out(match: re.Match[str]) -> str:
    if match[1]:
        return rf"\u00{match[1]}"
    return _BREAKS.get(match[2] or "", match[0])


def _literal(units: list[str]) -> str:
    parts = [""]
    for unit in units:
        parts[-1] += unit
        if unit[:2] in ("\\x", "\\u", "\\U") or not unit.isascii():
            parts.append("")
    kept = [f'"{part}"' for part in parts if part] or ['""']
    return kept[0] if len(kept) == 1 else f"({' '.join(kept)})"


def _escaped(character: str) -> str:
    plain = character.isascii() and character.isalnum()
    return character if plain else f"\\U{ord(character):08x}"


def _strings(value: Any) -> list[str]:
    """Every string in a constant, the names of its members too."""
    if isinstance(value, dict):
        return [*value, *_strings([*value.values()])]
    if isinstance(value, list):
        return [text for item in value for text in _strings(item)]
    return [value] if isinstance(value, str) else []
