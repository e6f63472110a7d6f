"""Telling a chat template's own control tokens from the same characters in what a caller wrote."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from inferwire_server.domain.errors import InvalidRequest
from inferwire_server.text.render_budget import WHITE_SPACE
from inferwire_server.text.vocabulary import ControlToken

_STAND_INS = range(0xF0000, 0x10FFFE)
_STRETCH = 32 * 1024
"""Characters searched in one go: a search holds the interpreter lock."""


@dataclass(frozen=True, slots=True)
class Run:
    """A piece of text between control tokens, and the token behind it."""

    text: str
    token_id: int | None
    """None at the end of the whole text."""


class StandIns:
    """Private-use characters that the caller did not use, each standing for another character during one rendering."""

    def __init__(self, texts: Iterable[str], field: str) -> None:
        self._free = _unused(texts)
        self._field = field
        self._by_character: dict[str, str] = {}

    def for_character(self, character: str) -> str:
        """Its stand-in. Raises InvalidRequest when the caller used every private-use character."""
        if character not in self._by_character:
            stand_in = next(self._free, None)
            if stand_in is None:
                raise InvalidRequest(self._field, "has every private-use character there is; remove some")
            self._by_character[character] = stand_in
        return self._by_character[character]

    def reveal(self, text: str) -> str:
        """The text with the characters themselves in place of their stand-ins."""
        for character, stand_in in self._by_character.items():
            text = text.replace(stand_in, character)
        return text


def _unused(texts: Iterable[str]) -> Iterator[str]:
    used: set[str] = set()
    for text in texts:
        if not text.isascii():
            used.update(text)
    for code in _STAND_INS:
        if chr(code) not in used:
            yield chr(code)


class ControlText:
    """The written forms of a model's control tokens."""

    def __init__(self, tokens: Sequence[ControlToken]) -> None:
        self._tokens = {token.text: token for token in tokens}
        self._any = _any_of(self._tokens)
        rests = defaultdict(list)
        for text in self._tokens:
            rests[text[0]].append(text[1:])
        self._openings = {
            first: re.compile(f"{re.escape(first)}(?={_any_of(following).pattern})")
            for first, following in rests.items()
        }
        self._beginnings = {text[:end] for text in self._tokens for end in range(1, len(text))}
        self._ends = {text[start:] for text in self._tokens for start in range(1, len(text))}
        self._reach = max(map(len, self._tokens), default=1) - 1

    def hide(self, text: str, stand_ins: StandIns) -> str:
        """The text in a form that reads as no control token, whatever is put beside it; of the same length."""
        text = "".join(
            self._hide_openings(text[start : start + _STRETCH + self._reach], stand_ins)[:_STRETCH]
            for start in range(0, len(text), _STRETCH)
        )
        for position in self._joinable_positions(text):
            text = text[:position] + stand_ins.for_character(text[position]) + text[position + 1 :]
        return text

    def split(self, rendered: str) -> Iterator[Run]:
        """The runs between the control tokens of a rendered text, in the way the tokenizers library finds them."""
        end, strip_left = 0, False
        for match in self._matches(rendered):
            token = self._tokens[match.group()]
            text = rendered[end : match.start()]
            text = text.lstrip(WHITE_SPACE) if strip_left else text
            yield Run(text.rstrip(WHITE_SPACE) if token.strips_left else text, token.token_id)
            end, strip_left = match.end(), token.strips_right
        text = rendered[end:]
        yield Run(text.lstrip(WHITE_SPACE) if strip_left else text, None)

    def _hide_openings(self, text: str, stand_ins: StandIns) -> str:
        for first, opening in self._openings.items():
            if opening.search(text):
                text = opening.sub(stand_ins.for_character(first), text)
        return text

    def _matches(self, text: str) -> Iterator[re.Match[str]]:
        position, length = 0, len(text)
        while position < length:
            border = position + _STRETCH
            match = self._any.search(text, position, border + self._reach)
            if match is None or match.start() >= border:
                position = border
            else:
                yield match
                position = match.end()

    def _joinable_positions(self, text: str) -> list[int]:
        """Where a control token could begin or end that goes over an edge of the text."""
        reach = min(self._reach, len(text))
        positions = [start for start in range(len(text) - reach, len(text)) if text[start:] in self._beginnings]
        if any(text[:end] in self._ends for end in range(1, reach + 1)):
            positions.append(0)
        return positions


def _any_of(texts: Iterable[str]) -> re.Pattern[str]:
    longest_first = sorted(texts, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first)) if longest_first else r"(?!)")
