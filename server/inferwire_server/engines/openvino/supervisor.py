"""Keeps a worker process alive: starts it, listens to it, and replaces it when it dies or falls silent."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import signal
import socket
import sys
import time
from collections.abc import Callable
from typing import Protocol

from inferwire_server.engines.openvino.frames import (
    Fault,
    Frame,
    FrameError,
    FrameReader,
    Heartbeat,
    Load,
    Quit,
    Ready,
    Step,
    encode,
)
from inferwire_server.engines.openvino.vigilance import HEARTBEAT_S, RestartBackoff, SilenceWatch

_log = logging.getLogger(__name__)
_EXIT_S = 2.0
"""How long a worker that was told to exit, or is exiting, may take before it is killed."""


class WorkerEvents(Protocol):
    """What the supervisor tells its owner, always on the loop that started it."""

    def worker_ready(self, ready: Ready) -> None:
        """A worker has loaded its model."""

    def worker_stepped(self, step: Step) -> None:
        """A step brought something."""

    def worker_lost(self, reason: str) -> None:
        """The worker is gone with everything in it; another is on its way."""


class Worker(asyncio.Protocol):
    """One incarnation of the child process, seen from the parent."""

    def __init__(self, on_frame: Callable[[Worker, Frame], None], on_lost: Callable[[Worker, str], None]) -> None:
        self._on_frame = on_frame
        self._on_lost = on_lost
        self._reader = FrameReader()
        self._process: asyncio.subprocess.Process | None = None
        self._transport: asyncio.WriteTransport | None = None
        self._is_lost = False
        self.started_at = time.monotonic()
        self.ready_at: float | None = None
        self.watch: SilenceWatch | None = None
        """From Ready on."""

    @property
    def pid(self) -> int | None:
        """Process id; None before the spawn."""
        return None if self._process is None else self._process.pid

    async def spawn(self, load: Load) -> None:
        """Start the process and tell it what to load. Raises OSError when the system cannot."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        ours.setblocking(False)
        try:
            with theirs:
                self._process = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-P", "-m", "inferwire_server.engines.openvino.worker"),
                    *(str(theirs.fileno()), str(os.getpid())),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=sys.__stderr__.fileno() if sys.__stderr__ else None,
                    pass_fds=(theirs.fileno(),),
                )
            self._transport, _ = await asyncio.get_running_loop().create_unix_connection(lambda: self, sock=ours)
        except BaseException:
            ours.close()
            raise
        self.send(load)
        if self._is_lost:
            self._transport.abort()

    def send(self, frame: Frame) -> None:
        """Queue a frame; dropped when the worker is gone."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(encode(frame))

    def lose(self, reason: str, *, is_stuck: bool = False) -> None:
        """Cut the connection and report the worker lost, once; kill it when it would not notice."""
        if self._is_lost:
            return
        self._is_lost = True
        if self._transport is not None:
            self._transport.abort()
        if is_stuck:
            self._kill()
        self._on_lost(self, reason)

    async def reap(self) -> str:
        """Wait for the end of the process, by force if need be; how it ended, in words."""
        if self._process is None:
            return "never started"
        try:
            async with asyncio.timeout(_EXIT_S):
                status = await self._process.wait()
        except TimeoutError:
            self._kill()
            status = await self._process.wait()
        return f"signal {signal.Signals(-status).name}" if status < 0 else f"status {status}"

    async def quit(self) -> None:
        """Ask the process to exit, and reap it."""
        self._is_lost = True
        self.send(Quit())
        await self.reap()
        if self._transport is not None:
            self._transport.abort()

    def _kill(self) -> None:
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()

    def data_received(self, data: bytes) -> None:
        """Hand on the frames of one read: usually one step."""
        try:
            for frame in self._reader.feed(data):
                if self._is_lost:
                    return
                self._on_frame(self, frame)
        except FrameError as error:
            self.lose(f"the worker sent {error}")

    def connection_lost(self, error: Exception | None) -> None:
        """The process has closed its end, which it does only by ending."""
        self.lose("the worker process ended")


class Supervisor:
    """A worker that is replaced whenever it is lost."""

    def __init__(self, load: Load, events: WorkerEvents, *, start_timeout_s: float) -> None:
        self._load = load
        self._events = events
        self._start_timeout_s = start_timeout_s
        self._backoff = RestartBackoff()
        self._worker: Worker | None = None
        self._startup: asyncio.Future[None] | None = None
        self._ticker: asyncio.TimerHandle | None = None
        self._replacement: asyncio.Task[None] | None = None
        self._stopped = asyncio.Event()
        self._next_start: float = 0.0
        self._last_start_s = 1.0
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
        watch = None if self._worker is None else self._worker.watch
        return None if watch is None else watch.bound_s

    def ready_in_s(self) -> float:
        """Estimated seconds until a worker serves again; at least a tenth."""
        now = time.monotonic()
        begins = self._next_start if self._worker is None else self._worker.started_at
        return max(0.1, begins + self._last_start_s - now)

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
        worker = Worker(self._frame_came, self._worker_ended)
        self._worker = worker
        try:
            await worker.spawn(self._load)
        except OSError as error:
            worker.lose(f"the worker could not be started: {error}")

    async def _replace(self, lost: Worker, reason: str, delay_s: float) -> None:
        # Two models at once may not fit, so the old process is gone before the next one begins.
        _log.warning("worker %s lost (%s), ended by %s", lost.pid, reason, await lost.reap())
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stopped.wait(), delay_s)
        if not self._stopped.is_set():
            self.restarts += 1
            await self._spawn()

    def _frame_came(self, worker: Worker, frame: Frame) -> None:
        self.last_heard = now = time.monotonic()
        if isinstance(frame, Step | Heartbeat) and worker.watch is not None:
            if isinstance(frame, Heartbeat):
                worker.watch.heard()
                return
            worker.watch.heard(frame.seconds)
            self._events.worker_stepped(frame)
        elif isinstance(frame, Ready):
            worker.ready_at = now
            worker.watch = SilenceWatch(frame.step_times, now)
            self._last_start_s = now - worker.started_at
            self._events.worker_ready(frame)
            if self._startup is not None and not self._startup.done():
                self._startup.set_result(None)
        elif isinstance(frame, Fault):
            worker.lose(f"{frame.stage} failed: {frame.text}")

    def _worker_ended(self, worker: Worker, reason: str) -> None:
        self._worker = None
        now = time.monotonic()
        healthy_s = 0.0 if worker.ready_at is None else now - worker.ready_at
        delay_s = self._backoff.delay_after_loss(healthy_s, random.random())  # noqa: S311 - jitter, not a secret
        self._next_start = now + delay_s
        self._replacement = asyncio.get_running_loop().create_task(self._replace(worker, reason, delay_s))
        if self._startup is not None and not self._startup.done():
            self._startup.set_exception(RuntimeError(reason))
        else:
            self._events.worker_lost(reason)

    def _tick(self) -> None:
        self._ticker = asyncio.get_running_loop().call_later(HEARTBEAT_S, self._tick)
        worker, now = self._worker, time.monotonic()
        if worker is None:
            return
        if worker.watch is None:
            if now - worker.started_at > self._start_timeout_s:
                worker.lose(f"the worker was not ready after {self._start_timeout_s:g} s", is_stuck=True)
        elif worker.watch.tick(now):
            worker.lose(f"the worker was silent for more than {worker.watch.bound_s:.1f} s", is_stuck=True)
