"""Text to token ids and back: one model's tokenizer, with control tokens out of a caller's reach."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

import tokenizers

from inferwire_server.domain.errors import InvalidRequest
from inferwire_server.text.detokenizer import ByteLevelDecoder, TokenDecoder, WindowDecoder, decode_all
from inferwire_server.text.vocabulary import ControlToken, Vocabulary, for_continuing


class Tokenizer:
    """A `tokenizer.json`, safe to use from several threads.

    What the vocabulary cannot spell is refused, never dropped or replaced; and a control token's characters in a
    text are text.
    """

    def __init__(self, definition: bytes) -> None:
        """Raises ValueError, saying what is wrong, when the definition cannot be used."""
        self.digest = hashlib.sha256(definition).hexdigest()
        """Lower-case hex sha256 of the definition."""
        text = definition.decode()
        self._tokenizer = _parsed(text)
        content = json.loads(text)
        continuing = for_continuing(content)
        self._continuing = self._tokenizer if continuing is None else _parsed(json.dumps(continuing))
        self._vocabulary = Vocabulary.of(content, self._tokenizer, self._decode_with_control)
        self.control_tokens: tuple[ControlToken, ...] = self._vocabulary.control_tokens
        """By ascending id."""
        self.control_ids = frozenset(token.token_id for token in self.control_tokens)
        self.vocabulary_size = self._vocabulary.size
        """One more than the largest id; the model's own output may be wider."""
        unspellable = self._vocabulary.unspellable_bytes
        self._spellable = bytes(byte for byte in range(256) if byte not in unspellable)
        self._prefix, self._suffix = self._surrounding_ids()
        self._refused_ids = self._leaking_ids()

    @classmethod
    def load(cls, path: Path) -> Tokenizer:
        """Read a `tokenizer.json`. Raises OSError or ValueError."""
        return cls(path.read_bytes())

    def encode(
        self,
        text: str,
        *,
        add_special_tokens: bool = True,
        field: str = "prompt",
        max_tokens: int | None = None,
    ) -> list[int]:
        """The ids of a whole text, by default with the special tokens that the model puts around one.

        Raises InvalidRequest, naming `field`, for a character that the vocabulary cannot spell and for a text of
        more than `max_tokens`.
        """
        self.refuse_unspellable(text, field)
        prefix, suffix = (self._prefix, self._suffix) if add_special_tokens else ([], [])
        surrounding = len(prefix) + len(suffix)
        (ids,) = self._encode([text], field=field, max_tokens=max_tokens, other_tokens=surrounding)
        return prefix + ids + suffix

    def encode_runs(
        self, texts: Sequence[str], *, field: str, max_tokens: int | None = None, other_tokens: int = 0
    ) -> list[list[int]]:
        """The ids of each run of text between control tokens; the first run is the beginning of the whole text.

        Raises InvalidRequest when they are, with the `other_tokens`, more than `max_tokens`.
        """
        for text in texts:
            self.refuse_unspellable(text, field)
        return self._encode(texts, field=field, max_tokens=max_tokens, other_tokens=other_tokens)

    def count(self, text: str, *, add_special_tokens: bool = True, field: str = "prompt") -> int:
        """How many ids `encode` gives."""
        return len(self.encode(text, add_special_tokens=add_special_tokens, field=field))

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True, field: str = "token_ids") -> str:
        """The text of ids. Raises InvalidRequest for an id outside the vocabulary."""
        size = self.vocabulary_size
        for index, token_id in enumerate(token_ids):
            if not 0 <= token_id < size:
                raise InvalidRequest(
                    f"{field}[{index}]", f"{token_id} is not in the vocabulary; ids go from 0 to {size - 1}"
                )
        return decode_all(self.decoder(skip_special_tokens=skip_special_tokens), token_ids)

    def decoder(self, *, skip_special_tokens: bool = True) -> TokenDecoder:
        """A decoder for one output."""
        vocabulary = self._vocabulary
        if vocabulary.is_byte_level:
            return ByteLevelDecoder(vocabulary.table_without_control if skip_special_tokens else vocabulary.table)
        return WindowDecoder(self._decode_with_control, self.control_ids if skip_special_tokens else frozenset())

    def piece_bytes(self, token_id: int) -> bytes:
        """The bytes that a token stands for inside a text; empty for an id without a token."""
        return self._vocabulary.table.pieces[token_id] if 0 <= token_id < self.vocabulary_size else b""

    def least_tokens(self, text: str) -> int:
        """A number of tokens that the text certainly has, found without tokenising it."""
        most = self._vocabulary.most_bytes_per_token
        return 0 if most is None else -(-len(text.encode(errors="surrogatepass")) // most)

    def refuse_unspellable(self, text: str, field: str) -> None:
        """Raise InvalidRequest for the first character that the vocabulary has no tokens for."""
        try:
            encoded = text.encode()
        except UnicodeEncodeError as error:
            raise _unspellable(field, text[error.start], error.start) from None
        unspellable = self._vocabulary.unspellable_bytes
        if unspellable and encoded.translate(None, self._spellable):
            for position, character in enumerate(text):
                if not unspellable.isdisjoint(character.encode()):
                    raise _unspellable(field, character, position)

    def _encode(
        self, texts: Sequence[str], *, field: str, max_tokens: int | None, other_tokens: int
    ) -> list[list[int]]:
        # The batch call works without the interpreter lock, the single one holds it throughout.
        encodings = self._tokenizer.encode_batch_fast(texts[:1], add_special_tokens=False)
        if len(texts) > 1:
            encodings += self._continuing.encode_batch_fast(texts[1:], add_special_tokens=False)
        total = other_tokens + sum(map(len, encodings))
        if max_tokens is not None and total > max_tokens:
            raise too_long(field, max_tokens, total)
        runs = [encoding.ids if text else [] for encoding, text in zip(encodings, texts, strict=True)]
        if self._refused_ids:
            for text, ids in zip(texts, runs, strict=True):
                if not self._refused_ids.isdisjoint(ids):
                    raise self._refusal(text, field)
        return runs

    def _refusal(self, text: str, field: str) -> InvalidRequest:
        for character in dict.fromkeys(text):
            (encoding,) = self._tokenizer.encode_batch_fast([character], add_special_tokens=False)
            if not self._refused_ids.isdisjoint(encoding.ids):
                return _unspellable(field, character, text.index(character))
        return InvalidRequest(field, "has a word that this model's tokenizer cannot keep as text; remove it")

    def _surrounding_ids(self) -> tuple[list[int], list[int]]:
        bare = self._tokenizer.encode("a", add_special_tokens=False).ids
        surrounded = self._tokenizer.encode("a", add_special_tokens=True).ids
        start = next(i for i in range(len(surrounded) + 1) if surrounded[i : i + len(bare)] == bare)
        return surrounded[:start], surrounded[start + len(bare) :]

    def _leaking_ids(self) -> frozenset[int]:
        leaking = {
            token.token_id
            for token in self.control_tokens
            if token.token_id in self._tokenizer.encode(token.text, add_special_tokens=False).ids
        }
        unknown = self._vocabulary.unknown_id
        return frozenset(leaking if unknown is None else leaking | {unknown})

    def _decode_with_control(self, token_ids: Sequence[int]) -> str:
        return self._tokenizer.decode(list(token_ids), skip_special_tokens=False)


def too_long(field: str, max_tokens: int, actual: int, *, at_least: bool = False) -> InvalidRequest:
    """The refusal of a text that cannot fit, naming the limit and the actual number of tokens."""
    number = f"at least {actual}" if at_least else str(actual)
    return InvalidRequest(field, f"has {number} tokens, at most {max_tokens} fit", limit=max_tokens, actual=actual)


def _parsed(definition: str) -> tokenizers.Tokenizer:
    try:
        tokenizer = tokenizers.Tokenizer.from_str(definition)
    except Exception as error:
        raise ValueError(f"not a tokenizer.json that the tokenizers library can read: {error}") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    # Not part of the file: without it, "<|im_end|>" in a caller's text becomes the control token.
    tokenizer.encode_special_tokens = True
    return tokenizer


def _unspellable(field: str, character: str, position: int) -> InvalidRequest:
    return InvalidRequest(
        field,
        f"character U+{ord(character):04X} at position {position} is not in this model's vocabulary; remove it",
    )
