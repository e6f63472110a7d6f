"""The scripted model's vocabulary: one token per byte, and four control tokens."""

from __future__ import annotations

from collections.abc import Iterable

BEGINNING_ID = 256
END_ID = 257
MESSAGE_START_ID = 258
MESSAGE_END_ID = 259
VOCABULARY_SIZE = 260

CONTROL_TOKENS = {
    "<|bos|>": BEGINNING_ID,
    "<|eos|>": END_ID,
    "<|im_start|>": MESSAGE_START_ID,
    "<|im_end|>": MESSAGE_END_ID,
}
END_TOKEN_IDS = frozenset({END_ID, MESSAGE_END_ID})


def is_byte(token_id: int) -> bool:
    """Tell a byte's token from a control token."""
    return token_id < BEGINNING_ID


def byte_tokens(text: str) -> tuple[int, ...]:
    """Give the tokens of a text; lone surrogates become `?`."""
    return tuple(text.encode("utf-8", "replace"))


def text_of(token_ids: Iterable[int]) -> str:
    """Give the text of tokens; control tokens have none, and broken UTF-8 becomes U+FFFD."""
    return bytes(token_id for token_id in token_ids if is_byte(token_id)).decode("utf-8", "replace")
