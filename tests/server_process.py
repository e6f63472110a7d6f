"""A server in a process of its own, as an operator starts it, with a scripted engine unless told otherwise."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

HANG_BOUND_S = 30.0
MODEL_LOADING_BOUND_S = 240.0


class ServerProcess:
    """One running server. Log lines are parsed; what is not JSON is kept as text."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.log: list[dict[str, Any]] = []
        self._heard = asyncio.Event()
        self._listening = asyncio.create_task(self._listen(), name="log of a server process")

    @property
    def address(self) -> str:
        return str(next(line["address"] for line in self.log if line.get("event") == "listening"))

    @property
    def metrics_port(self) -> int:
        return int(next(line["metrics_port"] for line in self.log if line.get("event") == "listening"))

    async def until_logged(self, event: str, within_s: float = HANG_BOUND_S) -> None:
        """Wait for a line of the log."""
        async with asyncio.timeout(within_s):
            while not any(line.get("event") == event for line in self.log):
                assert not self._listening.done(), f"it ended before {event!r}: {self.log}"
                self._heard.clear()
                await self._heard.wait()

    def signal(self, number: signal.Signals = signal.SIGTERM) -> None:
        self.process.send_signal(number)

    async def until_exit(self, within_s: float = HANG_BOUND_S) -> int:
        """The exit status."""
        async with asyncio.timeout(within_s):
            return await self.process.wait()

    async def _listen(self) -> None:
        assert self.process.stderr is not None
        async for line in self.process.stderr:
            try:
                self.log.append(json.loads(line))
            except ValueError:
                self.log.append({"event": line.decode(errors="replace").rstrip()})
            self._heard.set()
        self._heard.set()

    async def close(self) -> None:
        """Kill it if it still runs."""
        with suppress(ProcessLookupError):
            self.process.kill()
        await self.process.wait()
        await self._listening


@asynccontextmanager
async def server_process(
    *,
    engine: str = "scripted",
    until: str = "ready",
    engine_options: dict[str, Any] | None = None,
    packages: Path | None = None,
    **settings: Any,
) -> AsyncIterator[ServerProcess]:
    """Start `inferwire serve` on free ports and wait for a line of its log, if any is named.

    `packages` is a folder whose modules it can import.
    """
    given: dict[str, Any] = {"port": 0, "metrics_port": 0, "drain_settle": 0.0, "drain_limit": 60.0} | settings
    environment = dict(os.environ) | {f"INFERWIRE_{name.upper()}": str(value) for name, value in given.items()}
    if packages is not None:
        environment["PYTHONPATH"] = str(packages)
    pace = {"step_base_s": 0.005} if engine == "scripted" else {}
    environment["INFERWIRE_ENGINE_OPTIONS"] = json.dumps(pace | (engine_options or {}))
    command = [sys.executable, "-m", "inferwire_server", "serve", "--engine", engine, "--log-format", "json"]
    process = await asyncio.create_subprocess_exec(
        *command, env=environment, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE
    )
    server = ServerProcess(process)
    try:
        if until:
            await server.until_logged(until, HANG_BOUND_S if engine == "scripted" else MODEL_LOADING_BOUND_S)
        yield server
    finally:
        await server.close()
