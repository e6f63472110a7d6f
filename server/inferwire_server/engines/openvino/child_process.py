"""The parent's end: one child process, its frames, its loss and its end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
import time
from collections.abc import Callable

from inferwire_server.engines.openvino.frames import Frame, FrameError, FrameReader, Quit, encode

_LINUX_CPU_CLOCK = 2
"""The kernel names a process's clock by its inverted id, shifted, and this."""
_EXIT_S = 2.0
"""How long a child that was told to exit, or is exiting, may take before it is killed."""


class ChildProcess(asyncio.Protocol):
    """A module that runs in a process of its own and speaks frames."""

    def __init__(
        self,
        module: str,
        on_frame: Callable[[Frame], None],
        on_lost: Callable[[ChildProcess, str], None],
        *,
        is_silent: bool = False,
    ) -> None:
        self._module = module
        self._is_silent = is_silent
        self._on_frame = on_frame
        self._on_lost = on_lost
        self._reader = FrameReader()
        self._process: asyncio.subprocess.Process | None = None
        self._transport: asyncio.WriteTransport | None = None
        self._is_lost = False

    @property
    def pid(self) -> int | None:
        """Process id; None before the spawn."""
        return None if self._process is None else self._process.pid

    def cpu_seconds(self) -> float | None:
        """Processor time used so far, all threads together; None where the system does not tell."""
        if sys.platform != "linux" or self.pid is None:
            return None
        try:
            return time.clock_gettime(~self.pid << 3 | _LINUX_CPU_CLOCK)
        except OSError:
            return None

    async def spawn(self, first: Frame) -> None:
        """Start the process and send it its first frame. Raises OSError when the system cannot."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        ours.setblocking(False)
        try:
            with theirs:
                self._process = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-P", "-m", self._module, str(theirs.fileno()), str(os.getpid())),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=asyncio.subprocess.DEVNULL if self._is_silent else _standard_error(),
                    stderr=asyncio.subprocess.DEVNULL if self._is_silent else None,
                    pass_fds=(theirs.fileno(),),
                )
            self._transport, _ = await asyncio.get_running_loop().create_unix_connection(lambda: self, sock=ours)
        except BaseException:
            ours.close()
            raise
        self.send(first)
        if self._is_lost:
            self._transport.abort()

    def send(self, frame: Frame) -> None:
        """Queue a frame; dropped when the child is gone."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(encode(frame))

    def lose(self, reason: str, *, is_stuck: bool = False) -> None:
        """Cut the connection and report the child lost, once; kill it when it would not notice."""
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
                self._on_frame(frame)
        except FrameError as error:
            self.lose(f"it sent {error}")

    def connection_lost(self, error: Exception | None) -> None:
        """The process has closed its end, which it does only by ending."""
        self.lose("the process ended")


def _standard_error() -> int | None:
    """Where a child's output goes: never among what the parent prints for its caller."""
    return None if sys.__stderr__ is None else sys.__stderr__.fileno()
