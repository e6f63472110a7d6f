"""Less traffic for an endpoint that refuses most of it."""

from __future__ import annotations

from inferwire.settings import ThrottlePolicy


class AdaptiveThrottle:
    """Recent answers of one endpoint and the chance with which to pass it by.

    p = max(0, (requests - K x accepts) / (requests + 1)), the client-side throttling of Google's SRE book, over answers
    that count half after each half-life. What was passed by is not counted, so that a recovery is believed at once.
    """

    __slots__ = ("_accepts", "_counted_at", "_policy", "_requests")

    def __init__(self, policy: ThrottlePolicy) -> None:
        self._policy = policy
        self._requests = 0.0
        self._accepts = 0.0
        self._counted_at: float | None = None

    def accepted(self, now: float) -> None:
        """Note a request that the server took, or refused for the caller's fault. `now` in monotonic seconds."""
        self._fade(now)
        self._requests += 1.0
        self._accepts += 1.0

    def refused(self, now: float) -> None:
        """Note a request refused for lack of room or readiness."""
        self._fade(now)
        self._requests += 1.0

    def skip_probability(self, now: float) -> float:
        """The chance, 0 to below 1, with which a request should go elsewhere."""
        # It only fades, so that few requests need no look at the clock.
        if self._requests < self._policy.min_requests:
            return 0.0
        self._fade(now)
        if self._requests < self._policy.min_requests:
            return 0.0
        return max(0.0, (self._requests - self._policy.accept_multiplier * self._accepts) / (self._requests + 1.0))

    def _fade(self, now: float) -> None:
        if self._counted_at is None:
            self._counted_at = now
        elif now > self._counted_at:
            kept = 0.5 ** ((now - self._counted_at) / self._policy.half_life_s)
            self._requests *= kept
            self._accepts *= kept
            self._counted_at = now

    def __repr__(self) -> str:
        return f"<AdaptiveThrottle {self._accepts:.1f} of {self._requests:.1f} accepted>"
