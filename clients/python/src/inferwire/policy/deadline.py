"""Deadlines as points in monotonic time, handed from call to call."""

from __future__ import annotations

from dataclasses import dataclass

SHORTEST_USEFUL_S = 0.02
"""An attempt with less time than this is not worth sending."""


@dataclass(frozen=True, slots=True)
class Deadline:
    """When a call must have ended; None is never."""

    at: float | None = None
    """Monotonic seconds."""

    @classmethod
    def for_call(
        cls, now: float, *, timeout_s: float | None, default_s: float | None, incoming: Deadline | None = None
    ) -> Deadline:
        """A call's own timeout, or the default when it has none, and never later than the deadline it serves."""
        chosen = default_s if timeout_s is None else timeout_s
        own = cls() if chosen is None else cls(now + chosen)
        return own if incoming is None else own.earliest(incoming)

    def earliest(self, other: Deadline) -> Deadline:
        """The stricter of two."""
        known = [at for at in (self.at, other.at) if at is not None]
        return Deadline(min(known)) if known else Deadline()

    def remaining(self, now: float) -> float | None:
        """Seconds left, at least 0; None when there is no end."""
        return None if self.at is None else max(0.0, self.at - now)

    def has_passed(self, now: float) -> bool:
        """Whether no time is left."""
        return self.at is not None and now >= self.at

    def leaves_room(self, now: float, *, delay_s: float = 0.0, first_token_s: float = 0.0) -> bool:
        """Whether an attempt sent after `delay_s` could give its first token in time."""
        return self.at is None or now + delay_s + max(first_token_s, SHORTEST_USEFUL_S) <= self.at
