"""Lines of the log come out whole and in order, or are counted; whoever writes them waits for nobody."""

from __future__ import annotations

import errno
import fcntl
import os
import select
from collections.abc import Iterator
from contextlib import suppress
from threading import Thread

import pytest
from inferwire_server.observability.log_writer import LogWriter

from tests.polling import until

HANG_BOUND_S = 20.0


class Pipe:
    """What the writer writes into."""

    def __init__(self) -> None:
        self.reading, self.writing = os.pipe()

    def fill(self) -> None:
        """Until it takes no more."""
        os.set_blocking(self.writing, False)
        with suppress(BlockingIOError):
            while True:
                os.write(self.writing, b"\n" * select.PIPE_BUF)

    def lines(self) -> list[str]:
        """Everything that was written, once nobody writes any more."""
        self.close("writing")
        with os.fdopen(self.reading, encoding="utf-8", errors="surrogateescape", closefd=False) as end:
            return end.read().splitlines()

    def close(self, end: str) -> None:
        if getattr(self, end) >= 0:
            os.close(getattr(self, end))
            setattr(self, end, -1)


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    made = Pipe()
    yield made
    made.close("reading")
    made.close("writing")


def test_what_was_put_comes_out_in_order_before_the_end(pipe: Pipe) -> None:
    fcntl.fcntl(pipe.writing, fcntl.F_SETPIPE_SZ, 1 << 20)
    writer = LogWriter()
    lines = [f"line {number} {'x' * (number % 300)}" for number in range(3000)]
    for line in lines[:10]:
        writer.put(line)
    writer.start(pipe.writing)
    for line in lines[10:]:
        writer.put(line)
    writer.close(HANG_BOUND_S)
    assert pipe.lines() == lines
    assert writer.dropped() == {"too_many_waiting": 0, "write_failed": 0}


def test_lines_of_one_thread_stay_in_order_beside_those_of_others(pipe: Pipe) -> None:
    fcntl.fcntl(pipe.writing, fcntl.F_SETPIPE_SZ, 1 << 20)
    writer = LogWriter()
    writer.start(pipe.writing)

    def write(number: int) -> None:
        for i in range(500):
            writer.put(f"{number} {i}")

    threads = [Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    writer.close(HANG_BOUND_S)
    lines = pipe.lines()
    for number in range(4):
        assert [line for line in lines if line.startswith(f"{number} ")] == [f"{number} {i}" for i in range(500)]


@pytest.mark.parametrize("is_blocking", [True, False], ids=["blocking", "non-blocking"])
async def test_a_reader_that_stands_still_costs_what_cannot_wait_and_nothing_else(
    pipe: Pipe, is_blocking: bool
) -> None:
    pipe.fill()
    os.set_blocking(pipe.writing, is_blocking)
    writer = LogWriter(most_waiting=10)
    writer.start(pipe.writing)
    for number in range(100):
        writer.put(f"{number}")
    writer.close(within_s=0.01)
    reading = Thread(target=os.read, args=(pipe.reading, 1 << 20))
    reading.start()
    reading.join(HANG_BOUND_S)
    writer.close(HANG_BOUND_S)
    written = [int(line) for line in pipe.lines() if line]
    assert written == sorted(written)
    assert len(written) >= 10
    assert writer.dropped() == {"too_many_waiting": 100 - len(written), "write_failed": 0}


def test_lines_for_a_reader_that_is_gone_are_counted(pipe: Pipe) -> None:
    writer = LogWriter()
    writer.start(pipe.writing)
    pipe.close("reading")
    for number in range(7):
        writer.put(f"{number}")
    writer.close(HANG_BOUND_S)
    assert writer.dropped() == {"too_many_waiting": 0, "write_failed": 7}


async def test_after_a_failure_lines_come_out_again_each_on_its_own(pipe: Pipe) -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    writer = LogWriter()
    writer.start(full)
    writer.put("lost")
    await until(lambda: writer.dropped()["write_failed"] == 1)
    writer.start(pipe.writing)
    writer.put("kept")
    writer.close(HANG_BOUND_S)
    os.close(full)
    assert pipe.lines() == ["kept"]


async def test_a_line_that_is_cut_off_is_ended_before_the_next(pipe: Pipe) -> None:
    class CutOff(LogWriter):
        """Its disk has room for seven bytes, is full, and then is not."""

        def __init__(self) -> None:
            super().__init__()
            self.room = [7, 0]

        def _write_some(self, data: bytes) -> int:
            room = self.room.pop(0) if self.room else len(data)
            if not room:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return super()._write_some(data[:room])

    writer = CutOff()
    for line in ("one", "two two", "three"):
        writer.put(line)
    writer.start(pipe.writing)
    await until(lambda: writer.dropped()["write_failed"] == 2)
    writer.put("four")
    writer.close(HANG_BOUND_S)
    assert pipe.lines() == ["one", "two", "four"]


def test_a_process_without_standard_error_counts_them() -> None:
    writer = LogWriter()
    writer.start(-1)
    writer.put("nowhere")
    writer.close(HANG_BOUND_S)
    assert writer.dropped()["write_failed"] == 1


def test_what_no_encoding_has_is_spelled(pipe: Pipe) -> None:
    writer = LogWriter()
    writer.start(pipe.writing)
    writer.put("half \ud800 ä")
    writer.close(HANG_BOUND_S)
    assert pipe.lines() == ["half \\ud800 ä"]
