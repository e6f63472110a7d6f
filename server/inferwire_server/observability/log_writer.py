"""Where lines of the log go: a thread writes them, so that nobody waits for whoever reads standard error.

A line that cannot be written is dropped and counted. No lock is taken to put one: whatever runs in the middle of that,
a finaliser for one, may log too.
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Iterator
from contextlib import suppress
from itertools import accumulate
from queue import Empty, SimpleQueue

_MOST_WAITING = 4096
"""Lines. One of a call has 300 bytes, one of a fault some thousands."""
_BATCH = 500
_PAUSE_S = 0.02
"""Between two batches: to be woken for each line would take the interpreter from the serving loop each time."""
_FLUSH_S = 1.0


class LogWriter:
    """`put` from any thread, which never blocks and never raises; `close` when nothing more comes."""

    def __init__(self, *, most_waiting: int = _MOST_WAITING) -> None:
        self._most_waiting = most_waiting
        self._waiting: SimpleQueue[str | None] = SimpleQueue()
        self._descriptor = -1
        self._overflows = 0
        self._failures = 0
        self._overflowing = threading.RLock()
        self._is_in_a_line = False
        self._is_closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="log", daemon=True)

    def start(self, descriptor: int) -> None:
        """Write to a file that is open, from now on or, when it was started before, instead."""
        self._descriptor = descriptor
        if self._thread.ident is None:
            self._thread.start()

    def put(self, line: str) -> None:
        """Have a line written that does not end in a newline, or count it as dropped."""
        if self._waiting.qsize() < self._most_waiting:
            self._waiting.put(line)
        else:
            with self._overflowing:
                self._overflows += 1

    def dropped(self) -> dict[str, int]:
        """Lines by why they were dropped."""
        return {"too_many_waiting": self._overflows, "write_failed": self._failures}

    def close(self, within_s: float = _FLUSH_S) -> None:
        """Write what waits, in that time. Blocks."""
        if self._thread.is_alive():
            self._waiting.put(None)
            self._is_closing.set()
            self._thread.join(within_s)

    def _run(self) -> None:
        is_open = True
        while is_open:
            batch = self._next_batch()
            is_open = batch[-1] is not None
            lines = [f"{line}\n".encode(errors="backslashreplace") for line in batch if line is not None]
            for group in _groups(lines):
                self._write(group)
            self._is_closing.wait(_PAUSE_S)

    def _next_batch(self) -> list[str | None]:
        """Whatever waits, once anything does; None is the last entry."""
        batch = [self._waiting.get()]
        with suppress(Empty):
            while batch[-1] is not None and len(batch) < _BATCH:
                batch.append(self._waiting.get_nowait())
        return batch

    def _write(self, lines: list[bytes]) -> None:
        rest = b"\n" if self._is_in_a_line else b""
        before = len(rest)
        rest += b"".join(lines)
        length = len(rest)
        try:
            while rest:
                rest = rest[self._write_some(rest) :]
        except OSError:
            written = length - len(rest) - before
            ends = [0, *accumulate(map(len, lines))]
            self._failures += sum(end > written for end in ends)
            if written >= 0:
                self._is_in_a_line = written not in ends
            return
        self._is_in_a_line = False

    def _write_some(self, data: bytes) -> int:
        while True:
            try:
                return os.write(self._descriptor, data)
            except BlockingIOError:
                # Whoever shares the file has made it non-blocking.
                writable = select.poll()
                writable.register(self._descriptor, select.POLLOUT)
                writable.poll()


def _groups(lines: list[bytes]) -> Iterator[list[bytes]]:
    """Lines that a pipe takes at once, so that nothing of another process comes between."""
    group: list[bytes] = []
    size = 0
    for line in lines:
        if group and size + len(line) > select.PIPE_BUF:
            yield group
            group, size = [], 0
        group.append(line)
        size += len(line)
    if group:
        yield group


STANDARD_ERROR = LogWriter()
"""One for the process, as standard error is."""
