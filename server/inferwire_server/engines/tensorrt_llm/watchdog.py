"""A thread that decides when the engine is dead and makes sure that the process ends.

It is a thread because a call into a dead engine can block any event loop for ever, and the process ends by
`os._exit` because the engine's own exit hooks may never return.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import structlog

EXIT_CODE = 70
"""EX_SOFTWARE of sysexits.h."""

_log = structlog.get_logger("inferwire.engine.tensorrt_llm")


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What is seen at one moment. Times are monotonic seconds."""

    now: float
    why_dead: str = ""
    """What the engine itself admits; see vital_signs."""
    last_beat: float | None = None
    """When the engine's loop last answered; None when it does not run."""
    running_since: float | None = None
    """The latest step, or the beginning of the work if that is later; None when nothing runs."""
    unanswered: int = 0
    """Requests sent since the engine last said anything, cancelled ones included."""
    unanswered_since: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Patience, in seconds."""

    silence_s: float
    loop_stuck_s: float
    exit_s: float
    interval_s: float = 0.25


_ENOUGH_UNANSWERED = 3


def diagnose(seen: Observation, bounds: Bounds) -> str:
    """Why the engine is dead; empty when it is not. Pure."""
    if seen.why_dead:
        return seen.why_dead
    if seen.last_beat is not None and seen.now - seen.last_beat > bounds.loop_stuck_s:
        return f"its event loop has not answered for {seen.now - seen.last_beat:.1f} s"
    if seen.running_since is not None and seen.now - seen.running_since > bounds.silence_s:
        return f"no step for {seen.now - seen.running_since:.1f} s while requests run"
    if (
        seen.unanswered >= _ENOUGH_UNANSWERED
        and seen.unanswered_since is not None
        and seen.now - seen.unanswered_since > bounds.silence_s
    ):
        return f"{seen.unanswered} requests without any answer"
    return ""


class Watchdog:
    """Watches from `start`; after a death, or when told to, ends the process in a bounded time."""

    def __init__(
        self,
        *,
        observe: Callable[[], Observation],
        on_death: Callable[[str], object],
        bounds: Bounds,
        exit_process: Callable[[int], object] = os._exit,
    ) -> None:
        self._observe = observe
        self._on_death = on_death
        self._bounds = bounds
        self._exit_process = exit_process
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._exit_at: float | None = None
        self._dead = False

    def start(self) -> None:
        """Begin to watch."""
        threading.Thread(target=self._watch, name="inferwire-watchdog", daemon=True).start()

    def stop(self) -> None:
        """Watch no longer. An exit that is due stays due."""
        self._stopped.set()

    def declare_dead(self, reason: str) -> None:
        """The engine is dead; called from any thread, and only the first call counts."""
        with self._lock:
            if self._dead:
                return
            self._dead = True
        _log.critical("engine dead", reason=reason, exit_within_s=self._bounds.exit_s)
        self.exit_within(self._bounds.exit_s)
        self._on_death(reason)

    def exit_within(self, seconds: float) -> None:
        """End the process after `seconds` at the latest, whatever blocks; a later call can only shorten it."""
        exit_at = time.monotonic() + seconds
        with self._lock:
            if self._exit_at is not None and self._exit_at <= exit_at:
                return
            self._exit_at = exit_at
        timer = threading.Timer(seconds, self._exit_if_due)
        timer.daemon = True
        timer.start()

    def _exit_if_due(self) -> None:
        with self._lock:
            due = self._exit_at is not None and time.monotonic() >= self._exit_at
            if due:
                self._exit_at = None
        if due:
            self._exit_process(EXIT_CODE)

    def _watch(self) -> None:
        while not self._stopped.wait(self._bounds.interval_s):
            try:
                reason = diagnose(self._observe(), self._bounds)
            except Exception:  # noqa: BLE001 - a look that fails must not end the watch
                _log.exception("watchdog cannot look")
                continue
            if reason:
                self.declare_dead(reason)
                return
