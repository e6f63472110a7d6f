"""Token ids to whole characters, one token at a time."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

REPLACEMENT = "\ufffd"

_Utf8Decoder = codecs.getincrementaldecoder("utf-8")


class TokenDecoder(Protocol):
    """One output's decoder; the texts of all its tokens and of `finish` together are the whole output's text."""

    @property
    def is_whole(self) -> bool:
        """Whether the text so far ends where its last token does: no character is half known."""

    def push(self, token_id: int) -> str:
        """The characters that this token completes. An id without text, or outside the vocabulary, gives ''."""

    def finish(self) -> str:
        """What was held back for want of its end: U+FFFD for the bytes of an unfinished character."""


@dataclass(frozen=True, slots=True)
class PieceTable:
    """What each id stands for, by id: its bytes, and its text where these are whole UTF-8 characters."""

    pieces: Sequence[bytes]
    texts: Sequence[str | None]

    @classmethod
    def of(cls, pieces: Sequence[bytes]) -> PieceTable:
        """The table of a vocabulary given as bytes by id."""
        return cls(pieces, [_whole_text(piece) for piece in pieces])

    def without(self, token_ids: Collection[int]) -> PieceTable:
        """The same table with these ids standing for nothing."""
        silent = frozenset(token_ids)
        return PieceTable(
            [b"" if token_id in silent else piece for token_id, piece in enumerate(self.pieces)],
            ["" if token_id in silent else text for token_id, text in enumerate(self.texts)],
        )


def _whole_text(piece: bytes) -> str | None:
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return None


class ByteLevelDecoder:
    """For vocabularies whose pieces are bytes: the result equals decoding all bytes at once with `errors="replace"`."""

    __slots__ = ("_pieces", "_texts", "_utf8", "is_whole")

    def __init__(self, table: PieceTable) -> None:
        self._pieces = table.pieces
        self._texts = table.texts
        self._utf8 = _Utf8Decoder("replace")
        self.is_whole = True

    def push(self, token_id: int) -> str:
        """See TokenDecoder."""
        try:
            text = self._texts[token_id]
        except IndexError:
            return ""
        if text is not None and self.is_whole:
            return text
        completed = self._utf8.decode(self._pieces[token_id])
        self.is_whole = not self._utf8.getstate()[0]
        return completed

    def finish(self) -> str:
        """See TokenDecoder."""
        self.is_whole = True
        return self._utf8.decode(b"", final=True)


class WindowDecoder:
    """For every other vocabulary: decodes the last few tokens together and gives out what is new.

    A tail that ends in U+FFFD may be a character's beginning and is held, at most `MAX_HELD` tokens: what is no
    character by then never becomes one. That bound keeps the cost of a token constant on any output.
    """

    MAX_HELD = 8

    __slots__ = ("_context", "_context_length", "_decode", "_held", "_silent", "is_whole")

    def __init__(self, decode: Callable[[Sequence[int]], str], silent_ids: Collection[int] = frozenset()) -> None:
        self._decode = decode
        self._silent = silent_ids
        self._context: list[int] = []
        self._context_length = 0
        self._held: list[int] = []
        self.is_whole = True

    def push(self, token_id: int) -> str:
        """See TokenDecoder."""
        if token_id in self._silent:
            return ""
        self._held.append(token_id)
        window = self._decode([*self._context, *self._held])
        is_open = len(window) <= self._context_length or window.endswith(REPLACEMENT)
        if is_open and len(self._held) < self.MAX_HELD:
            self.is_whole = len(window) <= self._context_length
            return ""
        return self._give_out(window)

    def finish(self) -> str:
        """See TokenDecoder."""
        return self._give_out(self._decode([*self._context, *self._held]))

    def _give_out(self, window: str) -> str:
        completed = window[self._context_length :]
        self._context, self._held = self._held, []
        self._context_length = len(self._decode(self._context))
        self.is_whole = True
        return completed


def decode_all(decoder: TokenDecoder, token_ids: Iterable[int]) -> str:
    """The text of a whole output by a fresh decoder."""
    text = "".join(map(decoder.push, token_ids))
    return text + decoder.finish()
