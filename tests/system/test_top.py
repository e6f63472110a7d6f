"""`inferwire top` in a terminal of its own, over a real server process under load."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import termios
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, suppress

import grpc
import pexpect
import pyte
import pytest
from inferwire.v1 import inference_pb2_grpc
from pexpect.fdpexpect import fdspawn

from tests.server_process import ServerProcess, server_process
from tests.serving import request

ROWS, COLUMNS = 40, 120
HANG_BOUND_S = 60
LEFT_THE_SCREEN = "\x1b[?1049l"
CTRL_C = "\x03"
CURSOR_SHOWN = "\x1b[?25h"


TAKE_THE_TERMINAL = (
    "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"
)


class Terminal:
    """What a person would see, and their keyboard."""

    def __init__(self, process: subprocess.Popen[bytes], keyboard: fdspawn) -> None:
        self.process = process
        self.keyboard = keyboard
        self.raw = ""
        self._screen = pyte.Screen(COLUMNS, ROWS)
        self._stream = pyte.Stream(self._screen)

    @property
    def text(self) -> str:
        return "\n".join(self._screen.display)

    def figure(self, pattern: str) -> str:
        """The first group of a pattern on the screen, empty when it is not there."""
        found = re.search(pattern, self.text)
        return found.group(1) if found else ""

    async def until(self, pattern: str) -> str:
        """Look until the pattern is on the screen; its first group, or all of it."""
        deadline = time.monotonic() + HANG_BOUND_S
        while (found := re.search(pattern, self.text)) is None:
            assert time.monotonic() < deadline, f"no {pattern!r} on the screen:\n{self.text}"
            await asyncio.to_thread(self._take)
        return found.group(found.lastindex or 0)

    async def until_changed(self, pattern: str) -> None:
        """Look until the pattern's group is another one."""
        before, deadline = self.figure(pattern), time.monotonic() + HANG_BOUND_S
        while self.figure(pattern) in ("", before):
            assert time.monotonic() < deadline, f"{pattern!r} stays at {before}:\n{self.text}"
            await asyncio.to_thread(self._take)

    async def until_exit(self) -> int:
        """The exit status, after everything was read."""
        with suppress(pexpect.EOF):
            deadline = time.monotonic() + HANG_BOUND_S
            while time.monotonic() < deadline:
                await asyncio.to_thread(self._take, at_end=True)
        return await asyncio.to_thread(self.process.wait, HANG_BOUND_S)

    def _take(self, *, at_end: bool = False) -> None:
        try:
            text = self.keyboard.read_nonblocking(65536, timeout=1)
        except pexpect.TIMEOUT:
            return
        except pexpect.EOF:
            if at_end:
                raise
            raise AssertionError(f"it has ended:\n{self.text}") from None
        self.raw += text
        self._stream.feed(text)


@contextmanager
def terminal_of(*arguments: str) -> Iterator[Terminal]:
    """`inferwire top` on a pseudo-terminal of its own, which it controls. Nothing is forked beside gRPC's threads."""
    ours, theirs = os.openpty()
    termios.tcsetwinsize(ours, (ROWS, COLUMNS))
    process = subprocess.Popen(
        [sys.executable, "-c", TAKE_THE_TERMINAL, sys.executable, "-m", "inferwire_server", "top", *arguments],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=os.environ | {"TERM": "xterm-256color"},
        start_new_session=True,
    )
    os.close(theirs)
    try:
        yield Terminal(process, fdspawn(ours, encoding="utf-8"))
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def watching(server: ServerProcess) -> AbstractContextManager[Terminal]:
    metrics = f"http://127.0.0.1:{server.metrics_port}/metrics"
    return terminal_of("--address", server.address, "--metrics", metrics, "--interval", "0.2")


@asynccontextmanager
async def calls(server: ServerProcess, tenants: tuple[str, ...]) -> AsyncIterator[None]:
    """A stream after another for each tenant, until the end."""
    async with grpc.aio.insecure_channel(server.address) as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)

        async def call(tenant: str) -> None:
            while True:
                async for _ in stub.StreamGenerate(
                    request(max_output_tokens=200), metadata=[("x-inferwire-tenant", tenant)]
                ):
                    pass

        running = [asyncio.create_task(call(tenant)) for tenant in tenants for _ in range(2)]
        try:
            yield
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)


@pytest.mark.slow
@pytest.mark.timeout(180)
async def test_it_shows_a_loaded_server_moving_and_quits_by_q() -> None:
    async with server_process(region="eu") as server, calls(server, ("search", "mail")):
        with watching(server) as terminal:
            await terminal.until(rf"at {re.escape(server.address)} in eu .*serving")
            await terminal.until(r"running +[1-4] +waiting +0")
            await terminal.until(r"batch +[1-4] +step +\d+\.\d ms")
            await terminal.until(r"engine +ready, 0 restarts")
            await terminal.until(r"KV cache +[█░]+ \d+%")
            await terminal.until(r"first token +p50 \d+ ms, p99")
            await terminal.until(r"token gap +p50 \d+ ms, p99 \d+ ms")
            for tenant in ("search", "mail"):
                await terminal.until(rf"{tenant} +[12] +0 +[1-9][\d.]*")
            rate = r"output +([\d.]+) tokens/s"
            await terminal.until_changed(rate)
            await terminal.until_changed(rate)

            terminal.keyboard.send("q")

            assert await terminal.until_exit() == 0
            assert LEFT_THE_SCREEN in terminal.raw
            assert terminal.raw.rindex(CURSOR_SHOWN) > terminal.raw.rindex("\x1b[?25l")
            assert "Traceback" not in terminal.raw


@pytest.mark.slow
@pytest.mark.timeout(180)
async def test_ctrl_c_ends_it_as_cleanly_and_the_loss_of_the_server_does_not() -> None:
    async with server_process() as server:
        with watching(server) as terminal:
            await terminal.until("serving")
            await terminal.until("answered")

            await server.close()

            await terminal.until("no reports from|have ended")
            await terminal.until("no metrics page at")
            terminal.keyboard.send(CTRL_C)

            assert await terminal.until_exit() == 0
            assert LEFT_THE_SCREEN in terminal.raw
            assert "Traceback" not in terminal.raw


async def test_without_a_server_it_says_so() -> None:
    with terminal_of("--address", "127.0.0.1:1") as terminal:
        status = await terminal.until_exit()

    assert status == 1
    assert "no server answers at 127.0.0.1:1" in terminal.raw
