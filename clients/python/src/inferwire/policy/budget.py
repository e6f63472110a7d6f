"""A bound on the retries of all calls together, so that an outage is not met with a storm."""

from __future__ import annotations

from inferwire.settings import BudgetPolicy


class RetryBudget:
    """Tokens that retries spend: some earned by requests, and a reserve that refills with time.

    In any time T with N requests at most `ratio x N + cap + reserve x (1 + T / window_s)` retries are granted, and
    at most `ratio x N + reserve x (1 + T / window_s)` since the start. The scheme is Finagle's.
    """

    __slots__ = ("_earned", "_policy", "_refilled_at", "_reserve")

    def __init__(self, policy: BudgetPolicy) -> None:
        self._policy = policy
        self._earned = 0.0
        self._reserve = float(policy.reserve)
        self._refilled_at: float | None = None

    def deposit(self) -> None:
        """Count a new request."""
        self._earned = min(float(self._policy.cap), self._earned + self._policy.ratio)

    def withdraw(self, now: float) -> bool:
        """Take one retry; False when there is none. `now` in monotonic seconds."""
        self._refill(now)
        # A tenth earned ten times is a retry, whatever binary fractions make of it.
        if self._earned >= 1.0 - 1e-9:
            self._earned = max(0.0, self._earned - 1.0)
        elif self._reserve >= 1.0 - 1e-9:
            self._reserve = max(0.0, self._reserve - 1.0)
        else:
            return False
        return True

    def balance(self, now: float) -> float:
        """Retries that could be taken now."""
        self._refill(now)
        return self._earned + self._reserve

    def _refill(self, now: float) -> None:
        if self._refilled_at is None:
            self._refilled_at = now
        elif now > self._refilled_at:
            rate = self._policy.reserve / self._policy.window_s
            self._reserve = min(float(self._policy.reserve), self._reserve + rate * (now - self._refilled_at))
            self._refilled_at = now

    def __repr__(self) -> str:
        return f"<RetryBudget {self._earned:.1f} earned, {self._reserve:.1f} of {self._policy.reserve} in reserve>"
