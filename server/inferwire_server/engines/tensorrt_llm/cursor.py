"""Our own place in the engine's cumulative lists: what is new, where it ends, and why."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from inferwire_server.domain.engine import Finished, Tokens
from inferwire_server.domain.generation import FinishReason, TokenLogprob, TokenLogprobs
from inferwire_server.engines.tensorrt_llm.surface import CompletionOutput, Logprob


class OutOfVocabulary(Exception):
    """The engine produced an id that the model does not have."""


class OutputCursor:
    """Follows one output. The engine's own diffs are relative to its latest response and are never used."""

    __slots__ = ("_ended_by", "_ends", "_last", "_seen", "_stops", "_top_logprobs", "_vocabulary_size")

    def __init__(
        self,
        *,
        end_token_ids: frozenset[int],
        stop_token_ids: frozenset[int],
        vocabulary_size: int,
        top_logprobs: int | None,
    ) -> None:
        self._ends = end_token_ids
        self._stops = stop_token_ids
        self._last = end_token_ids | stop_token_ids
        self._vocabulary_size = vocabulary_size
        self._top_logprobs = top_logprobs
        self._seen = 0
        self._ended_by: int | None = None

    @property
    def has_tokens(self) -> bool:
        """Whether the engine has produced anything."""
        return self._seen > 0

    def advance(self, output: CompletionOutput) -> Tokens | None:
        """The tokens since the last call, copied; None when there are none.

        An end or stop id is where the output ends, whatever the engine says or adds after it. At a stop the list may
        also be shorter than before: then there is nothing new.
        """
        ids = output.token_ids
        start = self._seen
        if self._ended_by is not None or len(ids) <= start:
            return None
        new = ids[start:]
        self._seen = len(ids)
        for position, token_id in enumerate(new):
            if token_id in self._last:
                self._ended_by = token_id
                new = new[:position]
                break
            if not 0 <= token_id < self._vocabulary_size:
                raise OutOfVocabulary(f"token id {token_id} of {self._vocabulary_size}")
        if not new:
            return None
        if self._top_logprobs is None:
            return Tokens(new)
        return Tokens(new, self._logprobs(new, (output.logprobs or ())[start:]))

    def finish(self, output: CompletionOutput, cached_tokens: int | None) -> Finished | None:
        """How the output ended; None when the engine names no ordinary reason."""
        ended_by = self._ended_by
        if ended_by is None and output.finish_reason == "stop":
            # The id was cut off before it was seen here. The engine names it, but not its own end id: our smallest.
            ended_by = output.stop_reason if isinstance(output.stop_reason, int) else min(self._ends, default=None)
        if ended_by is not None or output.finish_reason == "stop":
            is_stop = ended_by in self._stops and ended_by not in self._ends
            return Finished(
                reason=FinishReason.STOP,
                end_token_id=None if is_stop else ended_by,
                stop_token_id=ended_by if is_stop else None,
                cached_tokens=cached_tokens,
            )
        if output.finish_reason == "length":
            return Finished(reason=FinishReason.LENGTH, cached_tokens=cached_tokens)
        return None

    def _logprobs(
        self, ids: Sequence[int], entries: Sequence[Mapping[int, Logprob] | float]
    ) -> tuple[TokenLogprobs, ...]:
        known = [*entries[: len(ids)], *({} for _ in range(len(ids) - len(entries)))]
        return tuple(
            _token_logprobs(token_id, entry, self._top_logprobs or 0)
            for token_id, entry in zip(ids, known, strict=True)
        )


def _token_logprobs(token_id: int, entry: Mapping[int, Logprob] | float, top: int) -> TokenLogprobs:
    if not isinstance(entry, Mapping):
        return TokenLogprobs(TokenLogprob(token_id, _finite(entry)))
    chosen = entry.get(token_id)
    ranked = sorted(((candidate, value.logprob) for candidate, value in entry.items()), key=lambda item: -item[1])
    return TokenLogprobs(
        TokenLogprob(token_id, _finite(chosen.logprob) if chosen is not None else None),
        tuple(TokenLogprob(candidate, _finite(value)) for candidate, value in ranked[:top]),
    )


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
