"""How long a stream may be silent."""

from __future__ import annotations

from inferwire.settings import StallPolicy


class StallTimer:
    """The moment at which a stream's silence becomes a stall.

    Any event, Progress too, starts a new silence. Once an engine has begun, Progress helps only for a time: a server
    may be well while its engine hangs.
    """

    __slots__ = ("_heard_at", "_policy", "_started_at", "_token_at")

    def __init__(self, policy: StallPolicy, now: float) -> None:
        self._policy = policy
        self._heard_at = now
        self._started_at: float | None = None
        self._token_at: float | None = None

    def heard(self, now: float, *, token: bool = False) -> None:
        """Note an event; `token` when it carried output. `now` in monotonic seconds."""
        self._heard_at = now
        if token:
            self._token_at = now

    def started(self, now: float) -> None:
        """Note that an engine has begun, or has got on with the prompt."""
        self._started_at = now

    @property
    def expires_at(self) -> float | None:
        """Monotonic seconds of the stall unless something is heard; None when silence has no limit."""
        policy = self._policy
        if self._token_at is None:
            limits = ((self._heard_at, policy.first_token_s), (self._started_at, policy.prefill_s))
        else:
            limits = ((self._heard_at, policy.between_tokens_s), (self._token_at, policy.decode_s))
        ends = [since + longest for since, longest in limits if since is not None and longest is not None]
        return min(ends, default=None)

    def is_stalled(self, now: float) -> bool:
        """Whether the silence has lasted too long."""
        return self.expires_at is not None and now >= self.expires_at

    def __repr__(self) -> str:
        waiting = "between tokens" if self._token_at is not None else "for the first token"
        return f"<StallTimer {waiting}, heard at {self._heard_at:.3f}>"
