"""What a `tokenizer.json` says of its tokens: their bytes, which of them steer the model, what they cannot spell."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tokenizers

from inferwire_server.text.detokenizer import PieceTable

Definition = Mapping[str, Any]
Decode = Callable[[Sequence[int]], str]

_PRINTABLE = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
_OTHERS = tuple(byte for byte in range(256) if byte not in _PRINTABLE)
BYTE_ALPHABET = {chr(byte): byte for byte in _PRINTABLE} | {chr(256 + i): byte for i, byte in enumerate(_OTHERS)}
"""What byte each character of a byte-level token stands for (GPT-2's `bytes_to_unicode`, reversed)."""

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_ALL_BYTE_TOKENS = frozenset(f"<0x{byte:02X}>" for byte in range(256))
_NFC_SHRINKS_TO = 4
"""Composed UTF-8 has at least a third of the bytes (Unicode UAX 15, expansion factors); 4 is on the safe side."""


@dataclass(frozen=True, slots=True)
class ControlToken:
    """A token that steers the model; the same characters in a caller's content are ordinary text."""

    token_id: int
    text: str
    strips_left: bool = False
    """Takes white space before it along."""
    strips_right: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """The tokens of one tokenizer."""

    size: int
    """One more than the largest id; the model's own output may be wider."""
    control_tokens: tuple[ControlToken, ...]
    unknown_id: int | None
    """Stands for what the vocabulary cannot spell."""
    is_byte_level: bool
    """Whether a text's tokens are its bytes in order, so that decoding is joining bytes."""
    table: PieceTable
    table_without_control: PieceTable
    unspellable_bytes: frozenset[int]
    """Bytes that a byte-level vocabulary has no token for: tokenising drops them without a word."""
    most_bytes_per_token: int | None
    """A bound on the bytes of text that one token stands for; None where tokenising may drop or merge text."""

    @classmethod
    def of(cls, definition: Definition, tokenizer: tokenizers.Tokenizer, decode: Decode) -> Vocabulary:
        """Raises ValueError where characters outside the vocabulary would vanish."""
        ids = tokenizer.get_vocab(with_added_tokens=True)
        tokens: list[str | None] = [None] * (max(ids.values()) + 1)
        for token, token_id in ids.items():
            tokens[token_id] = token
        added = tokenizer.get_added_tokens_decoder()
        texts = {token_id: token.content for token_id, token in added.items()}
        control = [(i, token) for i, token in sorted(added.items()) if token.special and token.content]
        is_byte_level = [part["type"] for part in _parts(definition.get("decoder"))] == ["ByteLevel"]
        unknown = _unknown_token(definition)
        if not is_byte_level and unknown is None and not _has_byte_tokens(definition, ids):
            raise ValueError(
                "this tokenizer drops characters outside its vocabulary without a word; "
                "to be served it needs tokens for bytes or one for the unknown"
            )
        pieces = _byte_level_pieces(tokens, texts) if is_byte_level else _decoded_pieces(tokens, texts, decode)
        table = PieceTable.of(pieces)
        return cls(
            size=len(tokens),
            control_tokens=tuple(ControlToken(i, token.content, token.lstrip, token.rstrip) for i, token in control),
            unknown_id=None if unknown is None else ids.get(unknown),
            is_byte_level=is_byte_level,
            table=table,
            table_without_control=table.without([i for i, _ in control]),
            unspellable_bytes=frozenset(byte for token, byte in BYTE_ALPHABET.items() if token not in ids)
            if is_byte_level
            else frozenset(),
            most_bytes_per_token=_most_bytes_per_token(definition, pieces),
        )


def for_continuing(definition: Definition) -> dict[str, Any] | None:
    """The tokenizer for text that continues another one, where the first word of a text is given a leading space.

    None where a run's ids do not depend on whether it is the first.
    """
    if not any(part.get("prepend_scheme") == "first" for part in _parts(definition.get("pre_tokenizer"))):
        return None
    return {**definition, "pre_tokenizer": _never_prepending(definition["pre_tokenizer"])}


def _never_prepending(part: Definition) -> dict[str, Any]:
    changed = dict(part)
    if "pretokenizers" in changed:
        changed["pretokenizers"] = [_never_prepending(inner) for inner in changed["pretokenizers"]]
    if changed.get("prepend_scheme") == "first":
        changed["prepend_scheme"] = "never"
    return changed


def _byte_level_pieces(tokens: Sequence[str | None], added: Mapping[int, str]) -> list[bytes]:
    def piece(token: str) -> bytes:
        try:
            return bytes([BYTE_ALPHABET[character] for character in token])
        except KeyError:
            return token.encode()

    return [added[i].encode() if i in added else piece(token or "") for i, token in enumerate(tokens)]


def _decoded_pieces(tokens: Sequence[str | None], added: Mapping[int, str], decode: Decode) -> list[bytes]:
    # A token's text inside an output is what it adds behind another word: alone it may lose its leading space.
    anchor = next(([i] for i, token in enumerate(tokens) if token and i not in added and decode([i]).isalpha()), [])
    before = len(decode(anchor))

    def piece(token_id: int, token: str) -> bytes:
        byte = _BYTE_TOKEN.fullmatch(token)
        return bytes([int(byte[1], 16)]) if byte else decode([*anchor, token_id])[before:].encode()

    return [
        added[i].encode() if i in added else b"" if token is None else piece(i, token) for i, token in enumerate(tokens)
    ]


def _has_byte_tokens(definition: Definition, ids: Mapping[str, int]) -> bool:
    return bool(definition["model"].get("byte_fallback")) and ids.keys() >= _ALL_BYTE_TOKENS


def _unknown_token(definition: Definition) -> str | None:
    model = definition["model"]
    if model["type"] == "Unigram":
        return None if model.get("unk_id") is None else str(model["vocab"][model["unk_id"]][0])
    token = model.get("unk_token")
    return None if token is None else str(token)


def _most_bytes_per_token(definition: Definition, pieces: Sequence[bytes]) -> int | None:
    factor = 1
    for part in _parts(definition.get("normalizer")):
        if part["type"] == "NFC":
            factor *= _NFC_SHRINKS_TO
        elif part["type"] != "Prepend" and not _only_replaces_spaces(part):
            return None
    if not all(_keeps_every_byte(part) for part in _parts(definition.get("pre_tokenizer"))):
        return None
    if any(token["lstrip"] or token["rstrip"] for token in definition["added_tokens"] if not token["special"]):
        return None
    return factor * max(map(len, pieces))


def _only_replaces_spaces(part: Definition) -> bool:
    return (part["type"], part.get("pattern"), part.get("content")) == ("Replace", {"String": " "}, "\u2581")


def _keeps_every_byte(part: Definition) -> bool:
    return part["type"] in {"ByteLevel", "Digits", "Metaspace"} or (
        part["type"] == "Split" and part["behavior"] != "Removed"
    )


def _parts(component: Definition | None) -> list[Definition]:
    if component is None:
        return []
    if component["type"] != "Sequence":
        return [component]
    inner = component.get("normalizers") or component.get("pretokenizers") or component.get("decoders") or []
    return [part for item in inner for part in _parts(item)]
