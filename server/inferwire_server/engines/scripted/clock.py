"""The engine's only sight of time: a real clock on the running loop, or one that a test moves by hand."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from collections.abc import Callable
from typing import Protocol


class Timer(Protocol):
    """A call that is due later."""

    def cancel(self) -> None:
        """Make it never happen; idempotent."""


class StepClock(Protocol):
    """Tells the time and calls back. Times are monotonic seconds."""

    def now(self) -> float:
        """Give the present time."""

    def call_at(self, when: float, callback: Callable[[], None]) -> Timer:
        """Call back on the serving loop at a time, or soon when it has passed; never before this call returns."""


class LoopClock:
    """Real time on the running asyncio loop."""

    def now(self) -> float:
        return time.monotonic()

    def call_at(self, when: float, callback: Callable[[], None]) -> Timer:
        loop = asyncio.get_running_loop()
        delay = when - time.monotonic()
        return loop.call_later(delay, callback) if delay > 0 else loop.call_soon(callback)


class _ManualTimer:
    __slots__ = ("callback",)

    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None


class ManualClock:
    """Virtual time: nothing happens until a test advances it, and then in order of time."""

    def __init__(self, start: float = 1000.0) -> None:
        self._now = start
        self._due: list[tuple[float, int, _ManualTimer]] = []
        self._order = itertools.count()

    def __repr__(self) -> str:
        return f"<ManualClock at {self._now:g} s, {len(self._due)} calls due>"

    def now(self) -> float:
        return self._now

    def call_at(self, when: float, callback: Callable[[], None]) -> Timer:
        timer = _ManualTimer(callback)
        heapq.heappush(self._due, (max(when, self._now), next(self._order), timer))
        return timer

    def advance(self, seconds: float) -> None:
        """Let time pass; calls that become due happen at their own times."""
        end = self._now + seconds
        while self._due and self._due[0][0] <= end:
            self._run_next()
        self._now = end

    def settle(self, limit: int = 1_000_000) -> None:
        """Let time pass until no call is due. Raises RuntimeError after `limit` calls."""
        for _ in range(limit):
            if not self._due:
                return
            self._run_next()
        raise RuntimeError(f"calls are still due after {limit} of them")

    def _run_next(self) -> None:
        self._now, _, timer = heapq.heappop(self._due)
        if timer.callback is not None:
            timer.callback()
