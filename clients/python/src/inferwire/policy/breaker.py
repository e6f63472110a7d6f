"""A circuit breaker for calls that last: pybreaker keeps the state, permits make it safe around an await.

pybreaker by itself wraps calls, admits everybody when half open, reads the wall clock and counts only failures in
a row. Here it is told finished outcomes alone. Who may call, when an open breaker is probed and the error rate are
decided around it.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from types import TracebackType
from typing import Self

import pybreaker

from inferwire.settings import BreakerPolicy

_NEVER_BY_ITSELF_S = 10 * 365 * 86_400.0
_MOST_DOUBLINGS = 32
_WINDOW_PARTS = 10


class BreakerState(enum.StrEnum):
    """As in pybreaker."""

    CLOSED = pybreaker.STATE_CLOSED
    OPEN = pybreaker.STATE_OPEN
    HALF_OPEN = pybreaker.STATE_HALF_OPEN


StateChanged = Callable[[BreakerState], None]
"""Told each new state; must not raise."""


class Permit:
    """Leave for one attempt. Settle it once; what comes later, or after the breaker changed its state, counts nothing.

    As a context manager it is abandoned at the end unless it was settled.
    """

    __slots__ = ("_breaker", "generation", "is_settled")

    def __init__(self, breaker: Breaker, generation: int) -> None:
        self._breaker = breaker
        self.generation = generation
        """The breaker's state when it was granted."""
        self.is_settled = False

    @property
    def is_probe(self) -> bool:
        """Whether the breaker is half open and waits for this attempt."""
        return self._breaker.probe is self

    def alive(self, now: float) -> None:
        """Note the first sign of service. It ends a probe well, so that a long stream does not hold the only place."""
        self._breaker.note_alive(self, now)

    def success(self, now: float) -> None:
        """The attempt ended well. `now` in monotonic seconds."""
        self._breaker.settle(self, now, succeeded=True)

    def failure(self, now: float) -> None:
        """The attempt failed through the endpoint's fault."""
        self._breaker.settle(self, now, succeeded=False)

    def abandon(self) -> None:
        """The attempt says nothing about the endpoint: cancelled, refused for the caller's fault, or not sent."""
        self._breaker.release(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abandon()


class Breaker:
    """The breaker of one endpoint. For one event loop: nothing here locks."""

    def __init__(self, name: str, policy: BreakerPolicy, rng: Random, *, changed: StateChanged | None = None) -> None:
        self.name = name
        self.state = BreakerState.CLOSED
        self.generation = 0
        """Grows with each change of state."""
        self.probe: Permit | None = None
        """The one attempt under way while half open."""
        self._policy = policy
        self._rng = rng
        self._changed = changed
        self._window = _Window(policy.window_s)
        self._openings = 0
        self._closed_at: float | None = None
        self._reopens_at = 0.0
        self._machine = pybreaker.CircuitBreaker(
            fail_max=policy.consecutive_failures,
            reset_timeout=_NEVER_BY_ITSELF_S,
            success_threshold=policy.probe_successes,
            throw_new_error_on_trip=False,
            listeners=[_Listener(self._state_changed)],
            name=name,
        )

    @property
    def probes_at(self) -> float | None:
        """Monotonic seconds at which an open breaker takes a probe; None when it is not open."""
        return self._reopens_at if self.state is BreakerState.OPEN else None

    def admits(self, now: float, *, early: bool = False) -> bool:
        """Whether `acquire` would grant a permit now; `early` does not wait for an open breaker's time."""
        if self.state is BreakerState.OPEN:
            return early or now >= self._reopens_at
        return self.state is BreakerState.CLOSED or self.probe is None

    def acquire(self, now: float, *, early: bool = False) -> Permit | None:
        """Leave for one attempt, or None. While half open there is one permit at a time."""
        if not self.admits(now, early=early):
            return None
        if self.state is BreakerState.OPEN:
            self._machine.half_open()
            self._tell()
        permit = Permit(self, self.generation)
        if self.state is BreakerState.HALF_OPEN:
            self.probe = permit
        return permit

    def settle(self, permit: Permit, now: float, *, succeeded: bool) -> None:
        """Count a permit's outcome; use the permit's own methods."""
        if permit.is_settled:
            return
        permit.is_settled = True
        if permit.generation != self.generation:
            return
        is_probe = self.probe is permit
        if is_probe:
            self.probe = None
        # Half open, a permit that is no probe was one: its success has been counted when it showed signs of life.
        if is_probe or not succeeded or self.state is BreakerState.CLOSED:
            self._count(now, succeeded=succeeded)

    def note_alive(self, permit: Permit, now: float) -> None:
        """Let a probe succeed and live on as an ordinary attempt; use the permit's own method."""
        if permit.is_settled or self.probe is not permit:
            return
        self.probe = None
        self._count(now, succeeded=True)
        permit.generation = self.generation

    def release(self, permit: Permit) -> None:
        """Forget a permit; use the permit's own method."""
        permit.is_settled = True
        if self.probe is permit:
            self.probe = None

    def _count(self, now: float, *, succeeded: bool) -> None:
        before = self.state
        if succeeded:
            # A success that ends no row of failures and no probe would change nothing, and is nearly every outcome.
            if before is not BreakerState.CLOSED or self._machine.fail_counter:
                self._machine.call(_succeed)
        else:
            with suppress(_Failure):
                self._machine.call(_fail)
        self._window.add(now, succeeded=succeeded)
        if not succeeded and self.state is BreakerState.CLOSED and self._fails_too_often(now):
            self._machine.open()
        if self.state is not before:
            self._enter(now, came_from=before)
            self._tell()

    def _fails_too_often(self, now: float) -> bool:
        successes, failures = self._window.counts(now)
        calls = successes + failures
        return calls >= self._policy.min_calls and failures >= self._policy.error_rate * calls

    def _enter(self, now: float, *, came_from: BreakerState) -> None:
        self._window.clear()
        if self.state is BreakerState.CLOSED:
            self._closed_at = now
            return
        held = came_from is BreakerState.CLOSED and (
            self._closed_at is None or now - self._closed_at >= self._policy.window_s
        )
        self._openings = 1 if held else self._openings + 1
        longest = min(
            self._policy.open_max_s, self._policy.open_base_s * 2.0 ** min(self._openings - 1, _MOST_DOUBLINGS)
        )
        self._reopens_at = now + longest * self._rng.uniform(1.0 - self._policy.open_jitter, 1.0)

    def _state_changed(self, state: BreakerState) -> None:
        self.state = state
        self.generation += 1
        self.probe = None

    def _tell(self) -> None:
        if self._changed is not None:
            self._changed(self.state)

    def __repr__(self) -> str:
        if self.state is BreakerState.OPEN:
            return f"<Breaker {self.name} open, probe at {self._reopens_at:.3f}, opening {self._openings}>"
        if self.state is BreakerState.HALF_OPEN:
            return f"<Breaker {self.name} half-open, {'one probe' if self.probe else 'no probe'} under way>"
        failures = self._machine.fail_counter
        return f"<Breaker {self.name} closed, {failures} {'failure' if failures == 1 else 'failures'} in a row>"


class _Failure(Exception):
    """What pybreaker is told instead of the attempt's own error."""


def _succeed() -> None:
    return None


def _fail() -> None:
    raise _Failure


class _Listener(pybreaker.CircuitBreakerListener):
    def __init__(self, changed: StateChanged) -> None:
        self._changed = changed

    def state_change(
        self,
        cb: pybreaker.CircuitBreaker,
        old_state: pybreaker.CircuitBreakerState | None,
        new_state: pybreaker.CircuitBreakerState,
    ) -> None:
        self._changed(BreakerState(new_state.name))


@dataclass(slots=True)
class _Part:
    begins_at: float
    successes: int = 0
    failures: int = 0


class _Window:
    """Outcomes of the last seconds, counted in a few parts so that memory does not grow with traffic."""

    __slots__ = ("_parts", "_seconds")

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._parts: deque[_Part] = deque()

    def add(self, now: float, *, succeeded: bool) -> None:
        if not self._parts or now - self._parts[-1].begins_at >= self._seconds / _WINDOW_PARTS:
            self._parts.append(_Part(now))
            self._drop_old(now)
        if succeeded:
            self._parts[-1].successes += 1
        else:
            self._parts[-1].failures += 1

    def counts(self, now: float) -> tuple[int, int]:
        self._drop_old(now)
        return sum(part.successes for part in self._parts), sum(part.failures for part in self._parts)

    def clear(self) -> None:
        self._parts.clear()

    def _drop_old(self, now: float) -> None:
        while self._parts and now - self._parts[0].begins_at > self._seconds:
            self._parts.popleft()
