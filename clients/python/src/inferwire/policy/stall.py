"""How long a stream may be silent."""

from __future__ import annotations

from inferwire.settings import StallPolicy


class StallTimer:
    """The moment at which a stream's silence becomes a stall. Any event, Progress too, starts a new silence."""

    __slots__ = ("_has_token", "_heard_at", "_policy")

    def __init__(self, policy: StallPolicy, now: float) -> None:
        self._policy = policy
        self._heard_at = now
        self._has_token = False

    def heard(self, now: float, *, token: bool = False) -> None:
        """Note an event; `token` when it carried output. `now` in monotonic seconds."""
        self._heard_at = now
        self._has_token = self._has_token or token

    @property
    def expires_at(self) -> float | None:
        """Monotonic seconds of the stall unless something is heard; None when silence has no limit."""
        longest = self._policy.between_tokens_s if self._has_token else self._policy.first_token_s
        return None if longest is None else self._heard_at + longest

    def is_stalled(self, now: float) -> bool:
        """Whether the silence has lasted too long."""
        return self.expires_at is not None and now >= self.expires_at

    def __repr__(self) -> str:
        waiting = "between tokens" if self._has_token else "for the first token"
        return f"<StallTimer {waiting}, heard at {self._heard_at:.3f}>"
