"""Stop strings found in a text that arrives in pieces: the automaton of Aho and Corasick (CACM 18:6, 1975)."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

_ROOT = 0


@dataclass(frozen=True, slots=True)
class StopMatch:
    """Where a stop string was found; positions count the characters fed since the matcher's beginning."""

    string: str
    start: int
    end: int


class StopStrings:
    """A set of stop strings, compiled once and shared by the matchers of all outputs.

    Each state is a prefix of some stop string: the longest one that the text so far ends with.
    """

    __slots__ = ("children", "fallback", "find_beginning", "held", "match")

    def __init__(self, strings: Sequence[str]) -> None:
        if not all(strings):
            raise ValueError("a stop string has at least one character")
        self.children: list[dict[str, int]] = [{}]
        self.match: list[str] = [""]
        """By state: the longest stop string that the text now ends with, or ''."""
        self.fallback = [_ROOT]
        """By state: the state of its longest proper suffix."""
        self.held = [0]
        """By state: how many last characters may be the beginning of a stop string not yet complete."""
        for string in strings:
            self._add(string)
        self._link()
        beginnings = "".join(re.escape(character) for character in self.children[_ROOT])
        self.find_beginning = re.compile(f"[{beginnings}]" if beginnings else r"(?!)").search

    def _add(self, string: str) -> None:
        state = _ROOT
        for character in string:
            following = self.children[state].get(character)
            if following is None:
                following = self.children[state][character] = len(self.children)
                self.children.append({})
                self.match.append("")
                self.fallback.append(_ROOT)
                self.held.append(0)
            state = following
        self.match[state] = string

    def _link(self) -> None:
        waiting = deque((state, 1) for state in self.children[_ROOT].values())
        while waiting:
            state, depth = waiting.popleft()
            fallback = self.fallback[state]
            self.match[state] = self.match[state] or self.match[fallback]
            self.held[state] = depth if self.children[state] else self.held[fallback]
            for character, child in self.children[state].items():
                self.fallback[child] = self.follow(fallback, character)
                waiting.append((child, depth + 1))

    def follow(self, state: int, character: str) -> int:
        """The state after one more character."""
        while True:
            following = self.children[state].get(character)
            if following is not None:
                return following
            if state == _ROOT:
                return _ROOT
            state = self.fallback[state]


class StopMatcher:
    """Searches one output's text for the stop string that is complete first.

    The earliest end wins; of several that end there, the longest, which is the one that begins first.
    """

    __slots__ = ("_position", "_state", "_stops", "held")

    def __init__(self, stops: StopStrings) -> None:
        self._stops = stops
        self._state = _ROOT
        self._position = 0
        self.held = 0
        """How many of the last characters may be the beginning of a match; always less than the longest string."""

    def feed(self, text: str, *, may_stop: bool = True) -> StopMatch | None:
        """Search the next piece; at a match the rest of the piece is left out and the search is over.

        With `may_stop` off, strings that end in this piece are passed over.
        """
        stops, state, index, length = self._stops, self._state, 0, len(text)
        if state == _ROOT and stops.find_beginning(text) is None:
            self._position += length
            return None
        follow, match = stops.follow, stops.match
        while index < length:
            if state == _ROOT:
                beginning = stops.find_beginning(text, index)
                if beginning is None:
                    break
                index = beginning.start()
            state = follow(state, text[index])
            index += 1
            if match[state] and may_stop:
                end = self._position + index
                return StopMatch(match[state], end - len(match[state]), end)
        self._state = state
        self._position += length
        self.held = stops.held[state]
        return None
