"""One run of `inferwire top`: reports from WatchLoad and scrapes come in, the screen follows, a key ends it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import termios
import time
import tty
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Iterator

import grpc
from google.protobuf.duration_pb2 import Duration
from inferwire import AsyncClient, ClientConfig, InferwireError, ResilientChannel, ResilientRpcError
from inferwire.v1 import operations_pb2, operations_pb2_grpc
from rich.console import Console
from rich.live import Live

from inferwire_server.cli.top_figures import Figures, History, read
from inferwire_server.cli.top_screen import View, render

_TIMEOUT_S = 5.0
_REPORTS_KEPT = 40
_LARGEST_PAGE = 8 * 1024 * 1024


class TopSession:
    """`await run()` until `q` or Ctrl-C; raises InferwireError when there is no server at the start."""

    def __init__(self, config: ClientConfig, address: str, page: str, interval_s: float) -> None:
        """`config` reaches the server at `address`; `page` is the address of the metrics page, `interval_s` the time
        between looks."""
        self._config = config
        self._address = address
        self._page = page
        self._interval_s = interval_s
        self._history = History()
        self._token_rates: deque[float] = deque(maxlen=_REPORTS_KEPT)
        self._load = operations_pb2.Load()
        self._trouble = ""
        self._no_page = "waiting for a second look at the metrics page"

    async def run(self) -> None:
        """Show until told to stop."""
        async with AsyncClient(self._config) as client, ResilientChannel(self._config) as channel:
            self._info = await client.server_info(timeout_s=_TIMEOUT_S)
            self._models = [model.name for model in await client.models(timeout_s=_TIMEOUT_S)]
            self._status = await client.status(timeout_s=_TIMEOUT_S)
            self._load = self._status.load
            operations = operations_pb2_grpc.OperationsServiceStub(channel)
            with _stop_on_key() as stopped, Live(screen=True, auto_refresh=False, console=Console()) as live:
                reports = asyncio.create_task(self._follow(operations), name="load reports")
                looks = asyncio.create_task(self._look(client, live), name="looks")
                try:
                    await stopped.wait()
                finally:
                    for task in (reports, looks):
                        task.cancel()
                    await asyncio.gather(reports, looks, return_exceptions=True)

    async def _follow(self, operations: operations_pb2_grpc.OperationsServiceAsyncStub) -> None:
        """Take reports as they come; ask again when they end."""
        interval = Duration()
        interval.FromMilliseconds(round(self._interval_s * 1000))
        while True:
            try:
                async for report in operations.WatchLoad(operations_pb2.WatchLoadRequest(interval=interval)):
                    self._load = report.load
                    self._token_rates.append(report.load.output_tokens_per_second)
                    self._trouble = ""
                self._trouble = f"the reports of {self._address} have ended"
            except ResilientRpcError as failed:
                self._trouble = f"no reports from {self._address}: {failed.error.message}"
            except grpc.RpcError as failed:
                self._trouble = f"no reports from {self._address}: {failed}"
            await asyncio.sleep(self._interval_s)

    async def _look(self, client: AsyncClient, live: Live) -> None:
        while True:
            with contextlib.suppress(InferwireError):  # the reports say what the trouble is
                self._status = await client.status(timeout_s=_TIMEOUT_S)
            try:
                text = await asyncio.to_thread(_fetch, self._page)
                self._history.add(read(text, time.monotonic()))
                self._no_page = ""
            except (OSError, ValueError) as error:
                self._no_page = f"no metrics page at {self._page}: {getattr(error, 'reason', error)}"
            live.update(render(self._view()), refresh=True)
            await asyncio.sleep(self._interval_s)

    def _view(self) -> View:
        return View(
            address=self._address,
            info=self._info,
            models=self._models,
            status=self._status,
            load=self._load,
            figures=Figures() if self._no_page else self._history.figures(),
            page=self._no_page,
            token_rates=tuple(self._token_rates),
            trouble=self._trouble,
        )


def _fetch(page: str) -> str:
    with urllib.request.urlopen(page, timeout=_TIMEOUT_S) as answer:  # noqa: S310 (the command checked its scheme)
        text: str = answer.read(_LARGEST_PAGE).decode()
        return text


@contextlib.contextmanager
def _stop_on_key() -> Iterator[asyncio.Event]:
    """Set by `q`, Ctrl-C or SIGTERM; keys are not echoed, and the terminal is as it was afterwards."""
    stopped, loop, keyboard = asyncio.Event(), asyncio.get_running_loop(), sys.stdin.fileno()
    before = termios.tcgetattr(keyboard)

    def on_key() -> None:
        pressed = os.read(keyboard, 1024)
        if not pressed or b"q" in pressed.lower():
            stopped.set()

    tty.setcbreak(keyboard)
    loop.add_reader(keyboard, on_key)
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    try:
        yield stopped
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
        loop.remove_reader(keyboard)
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)
