"""Keeps a worker process alive: starts it, listens to it, and replaces it when it dies or falls silent."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from typing import Protocol

from inferwire_server.engines.openvino.child_process import ChildProcess
from inferwire_server.engines.openvino.frames import Fault, Frame, Heartbeat, Load, Ready, Step
from inferwire_server.engines.openvino.vigilance import HEARTBEAT_S, RestartBackoff, SilenceWatch

_MODULE = "inferwire_server.engines.openvino.worker"
_log = logging.getLogger(__name__)


class WorkerEvents(Protocol):
    """What the supervisor tells its owner, always on the loop that started it."""

    def worker_ready(self, ready: Ready) -> None:
        """A worker has loaded its model."""

    def worker_stepped(self, step: Step) -> None:
        """A step brought something."""

    def worker_lost(self, reason: str) -> None:
        """The worker is gone with everything in it; another is on its way."""


class Supervisor:
    """A worker that is replaced whenever it is lost."""

    def __init__(self, load: Load, events: WorkerEvents, *, start_timeout_s: float) -> None:
        self._load = load
        self._events = events
        self._start_timeout_s = start_timeout_s
        self._backoff = RestartBackoff()
        self._worker: ChildProcess | None = None
        self._watch: SilenceWatch | None = None
        """From Ready on."""
        self._started_at = 0.0
        """When the present worker was, or the next one will be."""
        self._ready_at = 0.0
        self._last_start_s = 1.0
        self._startup: asyncio.Future[None] | None = None
        self._ticker: asyncio.TimerHandle | None = None
        self._replacement: asyncio.Task[None] | None = None
        self._stopped = asyncio.Event()
        self.restarts = 0
        """Workers started after the first."""
        self.last_heard: float | None = None
        """time.monotonic() of the latest frame."""

    @property
    def worker_pid(self) -> int | None:
        """Process id of the present worker."""
        return None if self._worker is None else self._worker.pid

    @property
    def silence_bound_s(self) -> float | None:
        """Seconds of silence after which the present worker is given up; None while it loads."""
        return None if self._watch is None else self._watch.bound_s

    def ready_in_s(self) -> float:
        """Estimated seconds until a worker serves again; at least a tenth."""
        return max(0.1, self._started_at + self._last_start_s - time.monotonic())

    async def start(self) -> None:
        """Start the first worker and wait until it is ready. Raises RuntimeError with the reason when it is lost."""
        self._startup = asyncio.get_running_loop().create_future()
        self._tick()
        await self._spawn()
        try:
            await self._startup
        except RuntimeError:
            await self.stop()
            raise

    def send(self, frame: Frame) -> None:
        """To the present worker."""
        if self._worker is not None:
            self._worker.send(frame)

    async def stop(self) -> None:
        """End the worker and start no other. Idempotent."""
        self._stopped.set()
        if self._ticker is not None:
            self._ticker.cancel()
        if self._replacement is not None:
            await self._replacement
        worker, self._worker = self._worker, None
        if worker is not None:
            await worker.quit()

    async def _spawn(self) -> None:
        self._started_at = time.monotonic()
        worker = ChildProcess(_MODULE, self._frame_came, self._worker_ended)
        self._worker = worker
        try:
            await worker.spawn(self._load)
        except OSError as error:
            worker.lose(f"it could not be started: {error}")

    async def _replace(self, lost: ChildProcess, reason: str, delay_s: float) -> None:
        # Two models at once may not fit, so the old process is gone before the next one begins.
        end = await lost.reap()
        _log.warning("worker %s lost: %s (%s)", lost.pid, reason, end)
        if self._startup is not None and not self._startup.done():
            self._startup.set_exception(RuntimeError(f"{reason} ({end})"))
            return
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stopped.wait(), delay_s)
        if not self._stopped.is_set():
            self.restarts += 1
            await self._spawn()

    def _frame_came(self, frame: Frame) -> None:
        self.last_heard = now = time.monotonic()
        if isinstance(frame, Step | Heartbeat) and self._watch is not None:
            if isinstance(frame, Heartbeat):
                self._watch.heard()
                return
            self._watch.heard(frame.seconds)
            self._events.worker_stepped(frame)
        elif isinstance(frame, Ready):
            self._ready_at = now
            self._last_start_s = now - self._started_at
            self._watch = SilenceWatch(frame.step_times, now)
            self._events.worker_ready(frame)
            if self._startup is not None and not self._startup.done():
                self._startup.set_result(None)
        elif isinstance(frame, Fault) and self._worker is not None:
            self._worker.lose(f"{frame.stage} failed: {frame.text}")

    def _worker_ended(self, worker: ChildProcess, reason: str) -> None:
        now = time.monotonic()
        healthy_s = 0.0 if self._watch is None else now - self._ready_at
        delay_s = self._backoff.delay_after_loss(healthy_s, random.random())  # noqa: S311 - jitter, not a secret
        self._started_at = now + delay_s
        self._worker = self._watch = None
        self._replacement = asyncio.get_running_loop().create_task(self._replace(worker, reason, delay_s))
        if self._startup is not None and self._startup.done():
            self._events.worker_lost(reason)

    def _tick(self) -> None:
        self._ticker = asyncio.get_running_loop().call_later(HEARTBEAT_S, self._tick)
        worker, now = self._worker, time.monotonic()
        if worker is None:
            return
        if self._watch is None:
            if now - self._started_at > self._start_timeout_s:
                worker.lose(f"it was not ready after {self._start_timeout_s:g} s", is_stuck=True)
        elif self._watch.tick(now, worker.cpu_seconds()):
            worker.lose(f"it was silent for too long (bound {self._watch.bound_s:.1f} s)", is_stuck=True)
