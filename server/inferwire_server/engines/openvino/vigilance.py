"""When to give a silent worker up, and how long to wait before the next one. Pure: time and chance come in."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

HEARTBEAT_S = 0.25
"""An idle worker speaks this often."""
MIN_SILENCE_S = 2.0
SILENCE_PER_STEP = 10.0
PATIENCE = 5.0
"""How much longer a silent worker may take that uses processor time: more likely it is short of it than stuck."""
BUSY_SHARE = 0.02
"""Of a processor; what counts as using it."""
_REMEMBERED_STEPS = 1024


class SilenceWatch:
    """Tells a wedged worker from a long step.

    The bound is max(2 s, 10 times the 99th percentile of step times), and PATIENCE times that for a worker that uses
    processor time. Silence is counted in ticks of the watcher, so that a watcher which was itself held up (a stalled
    loop, a suspended machine) blames nobody.
    """

    def __init__(self, step_times: Iterable[float], now: float) -> None:
        self._step_times = deque(step_times, maxlen=_REMEMBERED_STEPS)
        self._last_tick = now
        self._last_cpu: float | None = None
        self._silence = 0.0

    def heard(self, step_seconds: float | None = None) -> None:
        """The worker spoke; it says how long its step took, if it made one."""
        self._silence = 0.0
        if step_seconds is not None:
            self._step_times.append(step_seconds)

    def tick(self, now: float, cpu_seconds: float | None) -> bool:
        """Called about each HEARTBEAT_S; whether the worker has been silent for too long.

        `cpu_seconds` is all the processor time that it has used so far, None where that is unknown.
        """
        elapsed = now - self._last_tick
        is_busy = (
            cpu_seconds is not None
            and self._last_cpu is not None
            and cpu_seconds - self._last_cpu > BUSY_SHARE * elapsed
        )
        self._silence += min(elapsed, 2 * HEARTBEAT_S) / (PATIENCE if is_busy else 1.0)
        self._last_tick, self._last_cpu = now, cpu_seconds
        return self._silence > self.bound_s

    @property
    def bound_s(self) -> float:
        """Seconds of silence, without the use of processor time, that are one too many."""
        return max(MIN_SILENCE_S, SILENCE_PER_STEP * self._p99())

    def _p99(self) -> float:
        ordered = sorted(self._step_times)
        return ordered[int(0.99 * (len(ordered) - 1) + 0.5)] if ordered else 0.0


class RestartBackoff:
    """Delays between the loss of a worker and the next: doubling, jittered, capped, forgotten after good times."""

    def __init__(self, *, first_s: float = 0.2, cap_s: float = 30.0, forgotten_after_s: float = 60.0) -> None:
        self._first_s = first_s
        self._cap_s = cap_s
        self._forgotten_after_s = forgotten_after_s
        self._losses = 0

    def delay_after_loss(self, healthy_s: float, unit: float) -> float:
        """Seconds to wait. `healthy_s` is how long the lost worker served, `unit` a random number from 0 to 1."""
        if healthy_s >= self._forgotten_after_s:
            self._losses = 0
        ceiling = min(self._cap_s, self._first_s * 2.0 ** min(self._losses, 32))
        self._losses += 1
        return ceiling * (0.5 + 0.5 * unit)
