"""However a text is cut, the matcher finds what searching all of it finds, and withholds no more than it must."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from inferwire_server.text.stop_matcher import StopMatch, StopMatcher, StopStrings

ALPHABETS = ["ab", "ab ", "aáä\n", "xyé龜🫠", "<|im_end|>\u0301"]


def naive_search(text: str, strings: Sequence[str]) -> StopMatch | None:
    """The earliest end wins, then the longest string."""
    for end in range(1, len(text) + 1):
        found = max((string for string in strings if text.endswith(string, 0, end)), key=len, default=None)
        if found is not None:
            return StopMatch(found, end - len(found), end)
    return None


def naive_held(text: str, strings: Sequence[str]) -> int:
    """The longest tail that is a proper beginning of some string."""
    beginnings = {string[:end] for string in strings for end in range(1, len(string))}
    return max((length for length in range(1, len(text) + 1) if text[-length:] in beginnings), default=0)


def check(pieces: Sequence[str], strings: Sequence[str]) -> None:
    matcher = StopMatcher(StopStrings(strings))
    text = ""
    for piece in pieces:
        found = matcher.feed(piece)
        text += piece
        assert found == naive_search(text, strings), (pieces, strings)
        if found is not None:
            return
        assert matcher.held == naive_held(text, strings), (pieces, strings)


def random_case(draw: random.Random) -> tuple[list[str], list[str]]:
    alphabet = draw.choice(ALPHABETS)
    strings = ["".join(draw.choices(alphabet, k=draw.randint(1, 6))) for _ in range(draw.randint(1, 5))]
    pieces = ["".join(draw.choices(alphabet, k=draw.randint(0, 4))) for _ in range(draw.randint(1, 12))]
    return pieces, strings


@pytest.mark.parametrize("seed", range(10))
def test_a_thousand_random_texts_in_random_cuts(seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(1000):
        check(*random_case(draw))


@given(
    st.lists(st.text(alphabet="ab<>\u0301", max_size=5), max_size=12),
    st.lists(st.text(alphabet="ab<>\u0301", min_size=1, max_size=6), min_size=1, max_size=5),
)
def test_any_text_in_any_cuts(pieces: list[str], strings: list[str]) -> None:
    check(pieces, strings)
