"""What a generation's life tells whoever counts: a few calls, so that scheduling needs no metrics library."""

from __future__ import annotations

from typing import Protocol

from inferwire_server.domain.caller import Caller
from inferwire_server.domain.errors import ServiceError
from inferwire_server.domain.generation import Completed, Generation


class GenerationObserver(Protocol):
    """Called on the serving loop; must be cheap and must not raise. Times are seconds."""

    def refused(self, caller: Caller, error: ServiceError) -> None:
        """A request ended before it became a generation."""

    def started(self, generation: Generation, caller: Caller, queue_time_s: float) -> None:
        """The engine has taken the generation."""

    def first_token(
        self, generation: Generation, caller: Caller, since_arrival_s: float, since_started_s: float
    ) -> None:
        """The first new token came out of the engine."""

    def tokens(self, generation: Generation, caller: Caller, count: int, gap_s: float | None) -> None:
        """An output gained tokens, `gap_s` after its previous ones (None: its first)."""

    def ended(
        self,
        generation: Generation,
        caller: Caller,
        outcome: Completed | ServiceError,
        total_s: float,
        decode_s: float | None,
        produced_tokens: int,
    ) -> None:
        """The caller's part is over. `decode_s` counts from the first token; None without one. `produced_tokens` came
        out of the engine for it."""
