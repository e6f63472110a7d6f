"""A model without weights: it ranks every token at every position of an output, and gives each rank a logit.

The logit of a rank is the same everywhere; which token has which rank is decided by the key and the position. So a
distribution is truncated once for all positions, and a token is drawn by looking up a rank.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from hashlib import shake_128

from inferwire_server.domain.generation import TokenLogprob, TokenLogprobs
from inferwire_server.engines.scripted.pseudo_text import ALPHABET, BLOCK_TOKENS, noise, words
from inferwire_server.engines.scripted.vocabulary import (
    BEGINNING_ID,
    END_ID,
    END_TOKEN_IDS,
    MESSAGE_END_ID,
    MESSAGE_START_ID,
)

_TEXT_RANKS = len(ALPHABET)
_OTHER_BYTES = bytes(byte for byte in range(256) if byte not in ALPHABET)
_CONTROL_ORDER = (BEGINNING_ID, MESSAGE_START_ID, END_ID, MESSAGE_END_ID)
"""The end tokens have the last ranks, so that leaving them out shortens the list."""

LOGITS: tuple[float, ...] = (
    6.0,
    *(2.0 - 0.1 * rank for rank in range(1, _TEXT_RANKS)),
    *(-6.0 - 0.002 * rank for rank in range(len(_OTHER_BYTES))),
    *(-30.0 - rank for rank in range(len(_CONTROL_ORDER))),
)
"""By rank, falling. At temperature 1 mostly the planned words, at 2 about a tenth other bytes."""
NUM_END_RANKS = len(END_TOKEN_IDS)
SURE_LOGIT = 50.0
"""Of a token that a plan asks for."""
_EAGER_FROM = 64
_LOG_SUM = math.log(sum(math.exp(logit) for logit in LOGITS))


@cache
def _text_orders(first: int) -> tuple[bytes, ...]:
    """All orders of the alphabet that start with the byte at an index: one for each odd stride."""
    strides = range(1, _TEXT_RANKS, 2)
    return tuple(
        bytes(ALPHABET[(first + rank * stride) % _TEXT_RANKS] for rank in range(_TEXT_RANKS)) for stride in strides
    )


class TokenModel:
    """One output's ranks. `key` decides the words; `end_key` decides where they end, if they end."""

    __slots__ = ("_block", "_end_key", "_end_threshold", "_ends", "_ends_block", "_key", "_noise", "_reply", "_words")

    def __init__(
        self,
        key: bytes,
        *,
        reply: Sequence[int] | None = None,
        mean_output_tokens: float | None = None,
        end_key: bytes = b"",
    ) -> None:
        self._key = key
        self._reply = reply
        self._end_key = end_key
        self._end_threshold = 0 if mean_output_tokens is None else int(2**32 / mean_output_tokens)
        self._block = -1
        self._words = b""
        self._noise = b""
        self._ends_block = -1
        self._ends: frozenset[int] = frozenset()

    def sure_token(self, position: int) -> int | None:
        """The token that the plan asks for at a position: of the reply, or an end; None where the words run."""
        if self._reply is not None:
            if position < len(self._reply):
                return self._reply[position]
            return END_ID
        return END_ID if self._end_threshold and position in self._ends_near(position) else None

    def words_from(self, position: int) -> bytes:
        """The likeliest tokens of the words from a position to the end of its block."""
        self._load(position // BLOCK_TOKENS)
        return self._words[position % BLOCK_TOKENS :]

    def has_reply_at(self, position: int) -> bool:
        """Whether the plan's reply reaches to a position."""
        return self._reply is not None and position < len(self._reply)

    def reply_from(self, position: int, limit: int) -> Sequence[int]:
        """Up to `limit` tokens of the plan's reply."""
        return () if self._reply is None else self._reply[position : position + min(limit, BLOCK_TOKENS)]

    def tokens_before_end(self, position: int, limit: int) -> int:
        """How many of the next `limit` tokens, inside one block, come before an end that the plan asks for."""
        if self._reply is not None:
            return 0
        if not self._end_threshold:
            return limit
        ends = self._ends_near(position)
        return next((count for count in range(limit) if position + count in ends), limit)

    def order(self, position: int) -> tuple[int, ...]:
        """All tokens by falling logit, as if the plan asked for none."""
        text, others = self._orders(position)
        return (*text, *others, *_CONTROL_ORDER)

    def token_at(self, position: int, rank: int) -> int:
        """The token of one rank, as in `order`."""
        if rank < _TEXT_RANKS:
            return self._orders(position)[0][rank]
        return self.order(position)[rank]

    def wants_to_close(self, position: int) -> bool:
        """Whether structured output should close here what it can: at one position in eight, later at one in two."""
        self._load(position // BLOCK_TOKENS)
        mask = 7 if position < _EAGER_FROM else 1
        return self._noise[position % BLOCK_TOKENS] & mask == 0

    def logprobs(self, position: int, token_id: int, num_top: int) -> TokenLogprobs:
        """The model's own logprobs, before temperature, penalties and masks."""
        sure = self.sure_token(position)
        order = self.order(position)
        if sure is None:
            top = [TokenLogprob(order[rank], LOGITS[rank] - _LOG_SUM) for rank in range(num_top)]
            return TokenLogprobs(TokenLogprob(token_id, LOGITS[order.index(token_id)] - _LOG_SUM), tuple(top))
        likeliest = (sure, *(candidate for candidate in order[: num_top + 1] if candidate != sure))
        top = [TokenLogprob(candidate, self._beside(sure, candidate, order)) for candidate in likeliest[:num_top]]
        return TokenLogprobs(TokenLogprob(token_id, self._beside(sure, token_id, order)), tuple(top))

    def _beside(self, sure: int, token_id: int, order: tuple[int, ...]) -> float:
        rest = math.exp(_LOG_SUM - SURE_LOGIT)
        log_sum = SURE_LOGIT + math.log1p(rest)
        return (SURE_LOGIT if token_id == sure else LOGITS[order.index(token_id)]) - log_sum

    def _orders(self, position: int) -> tuple[bytes, bytes]:
        self._load(position // BLOCK_TOKENS)
        index = position % BLOCK_TOKENS
        chance = self._noise[index]
        start = chance * len(_OTHER_BYTES) // 256
        text = _text_orders(ALPHABET.index(self._words[index]))[chance & 15]
        return text, _OTHER_BYTES[start:] + _OTHER_BYTES[:start]

    def _load(self, block: int) -> None:
        if block != self._block:
            self._block = block
            self._words = words(self._key, block)
            self._noise = noise(self._key, block)

    def _ends_near(self, position: int) -> frozenset[int]:
        block = position // BLOCK_TOKENS
        if block != self._ends_block:
            self._ends_block = block
            draws = memoryview(shake_128(b"ends %b %d" % (self._end_key, block)).digest(4 * BLOCK_TOKENS)).cast("I")
            first = block * BLOCK_TOKENS
            self._ends = frozenset(first + i for i, draw in enumerate(draws) if draw < self._end_threshold)
        return self._ends
