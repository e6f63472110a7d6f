"""The child's end of the socket pair, and how a child begins and ends."""

from __future__ import annotations

import ctypes
import os
import select
import signal
import socket
import sys
from typing import NoReturn

from inferwire_server.engines.openvino.frames import Frame, FrameReader, encode

_PR_SET_PDEATHSIG = 1
_READ_BYTES = 1 << 20


class Channel:
    """Frames from and to the parent. The parent's closing its end ends the process."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._reader = FrameReader()
        self._poll = select.poll()
        self._poll.register(end, select.POLLIN)

    def receive(self, timeout_s: float | None) -> list[Frame]:
        """Frames that are there or come within the time; None waits for the first."""
        found: list[Frame] = []
        while not found and self._poll.poll(None if timeout_s is None else timeout_s * 1000):
            data = self._end.recv(_READ_BYTES)
            if not data:
                leave(0)
            found.extend(self._reader.feed(data))
        return found

    def send(self, frame: Frame) -> None:
        """Hand a frame over; waits while the parent does not read."""
        try:
            self._end.sendall(encode(frame))
        except (BrokenPipeError, ConnectionResetError):
            leave(0)


def open_channel() -> Channel:
    """Begin a child that was started with a descriptor and its parent's process id as arguments.

    It ignores what a terminal or a service manager sends to the whole group, for the parent may still be draining,
    and it dies with its parent.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    descriptor, parent = map(int, sys.argv[1:])
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        leave(0)
    return Channel(socket.socket(fileno=descriptor))


def leave(status: int) -> NoReturn:
    """End the process at once: nothing in it outlives it, and tearing a pipeline down in mid-request may hang."""
    sys.stderr.flush()
    os._exit(status)
