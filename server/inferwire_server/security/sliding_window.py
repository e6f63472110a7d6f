"""How much was taken in the last minute, at any moment: a sliding window, exact to a thousandth of its span.

What was taken counts for at least the span, so no stretch of that length ever holds more than the limit; it counts for
at most a thousandth longer, which bounds the memory. Time comes in as seconds of any one monotonic clock.
"""

from __future__ import annotations

import math
from collections import deque

_GRAINS = 1000
_TICK_S = 1e-6
"""Less than this is rounding."""


class Slot:
    """What was taken in one grain of time."""

    __slots__ = ("amount", "closes_at", "expires_at", "is_counted")

    def __init__(self, opened_at: float, span_s: float) -> None:
        self.amount = 0
        self.closes_at = opened_at + span_s / _GRAINS
        self.expires_at = self.closes_at + span_s
        self.is_counted = True


class SlidingWindow:
    """Whole units taken within the last `span_s` seconds."""

    __slots__ = ("_slots", "_span_s", "_used")

    def __init__(self, span_s: float = 60.0) -> None:
        self._span_s = span_s
        self._slots: deque[Slot] = deque()
        self._used = 0

    def __repr__(self) -> str:
        return f"<SlidingWindow {self._used} in {len(self._slots)} slots>"

    def used(self, now: float) -> int:
        """Units that count now."""
        slots = self._slots
        while slots and slots[0].expires_at <= now + _TICK_S:
            slot = slots.popleft()
            slot.is_counted = False
            self._used -= slot.amount
        return self._used

    def wait_s(self, amount: int, limit: int, now: float) -> float:
        """Seconds until `amount` more fits below `limit` if nothing else is taken: 0 now, infinity never."""
        excess = self.used(now) + amount - limit
        if excess <= 0:
            return 0.0
        if amount <= limit:
            for slot in self._slots:
                excess -= slot.amount
                if excess <= 0:
                    return slot.expires_at - now
        return math.inf

    def take(self, amount: int, now: float) -> Slot:
        """Count `amount` from now on, whether it fits or not."""
        slots = self._slots
        if not slots or now >= slots[-1].closes_at:
            slots.append(Slot(now, self._span_s))
        slot = slots[-1]
        slot.amount += amount
        self._used += amount
        return slot

    def give_back(self, slot: Slot, amount: int) -> None:
        """Of what was taken there, `amount` was not used; less than nothing when it was more."""
        if slot.is_counted:
            slot.amount -= amount
            self._used -= amount
