"""Whether a grammar derives any text at all. Pure.

The pipeline's compiler accepts one that derives none, such as `root ::= root`, and then lets everything through.
The productive rules are found as the least fixed point (Hopcroft and Ullman, 1979, section 4.4).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_TOKEN = re.compile(
    r'(?P<skip>\s+|#[^\n]*)|(?P<terminal>"(?:\\.|[^"\\])*"|\[(?:\\.|[^\]\\])*\])|(?P<rule>[\w.-]+)\s*::=|(?P<name>[\w.-]+)'
    r"|(?P<optional>[*?]|\{\s*0\s*,?\s*\d*\s*\})|(?P<repeat>\+|\{[^}]*\})|(?P<mark>[|()])",
    re.DOTALL,
)


_MOST_LOOKS = 50_000


@dataclass(slots=True)
class _Item:
    """A name, a group of alternatives, or something that is text by itself."""

    name: str = ""
    group: list[list[_Item]] | None = None
    is_optional: bool = False


def derives_nothing(source: str) -> bool:
    """Whether no text can come of the rule `root`.

    False for what this reads otherwise than the compiler, and where it would take long to find out.
    """
    try:
        return _Search(_rules(source)).finds_nothing()
    except (IndexError, ValueError, RecursionError):
        return False


class _Search:
    def __init__(self, rules: dict[str, list[list[_Item]]]) -> None:
        self._rules = rules
        self._productive: set[str] = set()
        self._looks_left = _MOST_LOOKS

    def finds_nothing(self) -> bool:
        if "root" not in self._rules:
            return False
        while found := {name for name in self._rules.keys() - self._productive if self._derives(self._rules[name])}:
            self._productive |= found
        return "root" not in self._productive

    def _derives(self, alternatives: list[list[_Item]]) -> bool:
        return any(all(map(self._yields_text, sequence)) for sequence in alternatives)

    def _yields_text(self, item: _Item) -> bool:
        self._looks_left -= 1
        if self._looks_left < 0:
            raise ValueError("too long a search")
        if item.is_optional:
            return True
        if item.group is not None:
            return self._derives(item.group)
        return not item.name or item.name in self._productive or item.name not in self._rules


def _rules(source: str) -> dict[str, list[list[_Item]]]:
    rules: dict[str, list[list[_Item]]] = {}
    stack: list[list[list[_Item]]] = [[[]]]
    for kind, text in _tokens(source):
        alternatives = stack[-1]
        if kind == "rule":
            stack = [rules.setdefault(text, [])]
            stack[-1].append([])
        elif kind == "terminal":
            alternatives[-1].append(_Item())
        elif kind == "name":
            alternatives[-1].append(_Item(name=text))
        elif kind == "optional":
            alternatives[-1][-1].is_optional = True
        elif text == "|":
            alternatives.append([])
        elif text == "(":
            group: list[list[_Item]] = [[]]
            alternatives[-1].append(_Item(group=group))
            stack.append(group)
        elif text == ")":
            stack.pop()
    return rules


def _tokens(source: str) -> Iterator[tuple[str, str]]:
    position = 0
    while position < len(source):
        match = _TOKEN.match(source, position)
        if match is None or match.lastgroup is None:
            raise ValueError(f"unknown at {position}")
        position = match.end()
        if match.lastgroup != "skip":
            yield match.lastgroup, match[match.lastgroup]
