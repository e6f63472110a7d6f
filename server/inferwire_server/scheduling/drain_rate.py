"""How fast a full server works its queue off, and from that: when to come back."""

from __future__ import annotations

import math

MEMORY_S = 10.0
"""Busy seconds after which an observation counts 1/e."""
UNKNOWN_HINT_S = 1.0
"""The hint before anything was measured."""
SHORTEST_HINT_S = 0.05
LONGEST_HINT_S = 30.0


class DrainRate:
    """Releases a second while something waited; quiet times teach nothing about how fast the server can be."""

    def __init__(self) -> None:
        self._releases = 0.0
        self._busy_s = 0.0
        self._busy_since: float | None = None

    def released(self, now: float, *, waiting: int) -> None:
        """A request left the engine while `waiting` others were queued."""
        if self._busy_since is not None and waiting:
            elapsed = now - self._busy_since
            kept = math.exp(-elapsed / MEMORY_S)
            self._releases = self._releases * kept + 1.0
            self._busy_s = self._busy_s * kept + elapsed
        self._busy_since = now if waiting else None

    def per_second(self, now: float) -> float | None:
        """None until measured. Falls while a busy server releases nothing."""
        if self._releases == 0.0:
            return None
        unreleased_s = 0.0 if self._busy_since is None else now - self._busy_since
        return self._releases / max(self._busy_s + unreleased_s, 1e-6)

    def retry_after_s(self, now: float, releases: float) -> float:
        """Seconds until that many requests are expected to have left, between SHORTEST_HINT_S and LONGEST_HINT_S."""
        rate = self.per_second(now)
        expected = UNKNOWN_HINT_S if rate is None else releases / rate
        return min(max(expected, SHORTEST_HINT_S), LONGEST_HINT_S)
