"""How soon an endpoint's first token comes."""

from __future__ import annotations

_NEWEST_SHARE = 0.2
_FORGOTTEN_HALF_LIFE_S = 10.0


class FirstTokenTime:
    """A moving average of one endpoint's times to first token, in seconds."""

    __slots__ = ("_observed_at", "expected_s")

    def __init__(self) -> None:
        self.expected_s: float | None = None
        """The average; None before the first one was seen."""
        self._observed_at = 0.0

    def observe(self, seconds: float, now: float) -> None:
        """Note a time to first token. `now` in monotonic seconds."""
        before = seconds if self.expected_s is None else self.expected_s
        self.expected_s = before + _NEWEST_SHARE * (seconds - before)
        self._observed_at = now

    def weight(self, now: float) -> float | None:
        """The average, halved for each ten seconds without news, so that an endpoint once slow is tried again."""
        if self.expected_s is None:
            return None
        return float(self.expected_s * 0.5 ** (max(0.0, now - self._observed_at) / _FORGOTTEN_HALF_LIFE_S))

    def __repr__(self) -> str:
        return "<FirstTokenTime unknown>" if self.expected_s is None else f"<FirstTokenTime {self.expected_s:.3f} s>"
