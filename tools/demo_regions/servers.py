"""Server processes of two regions: started, drained, made grey, killed, and started again at the same address."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress

MODULE = "tools.demo_regions.greyable_server"
SERVERS_EACH = 2
_START_LIMIT_S = 240.0
_STOP_LIMIT_S = 60.0
_TRIES = 20
_RETRY_S = 0.5
_LOG_LINES = 30


class ServerLost(Exception):
    """A server process ended when it should not have; the message has the end of its log."""


class Server:
    """One server process."""

    def __init__(self, region: str, settings: Mapping[str, str]) -> None:
        self.region = region
        self.address = ""
        """As `host:port`; set by the first start, and kept."""
        self._settings = settings
        self._process: asyncio.subprocess.Process | None = None
        self._log: deque[str] = deque(maxlen=_LOG_LINES)
        self._listening: asyncio.Task[None] | None = None

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def start(self) -> None:
        """Start it and wait until it is ready. Raises ServerLost."""
        for _ in range(_TRIES):
            if await self._try_to_start():
                return
            # Its port may be somebody's for a moment.
            await asyncio.sleep(_RETRY_S)
        raise ServerLost(f"a server of {self.region} does not start: {self._tail()}")

    async def drain(self) -> None:
        """Ask it to stop, and wait until it has."""
        self.signal(signal.SIGTERM)
        await self._until_ended()

    async def kill(self) -> None:
        """End it at once."""
        self.signal(signal.SIGKILL)
        await self._until_ended()

    def signal(self, number: signal.Signals) -> None:
        """SIGUSR1 makes it grey, SIGUSR2 well again."""
        self.require_running().send_signal(number)

    def require_running(self) -> asyncio.subprocess.Process:
        """Its process. Raises ServerLost when it has ended."""
        if self._process is None or not self.is_running:
            raise ServerLost(f"a server of {self.region} has ended: {self._tail()}")
        return self._process

    async def close(self) -> None:
        """Kill it if it runs."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.kill()
            await self._until_ended()

    async def _try_to_start(self) -> bool:
        port = self.address.rpartition(":")[2] or "0"
        environment = {f"INFERWIRE_{name}": value for name, value in self._settings.items()}
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", MODULE),
            env=dict(os.environ) | environment | {"INFERWIRE_PORT": port, "INFERWIRE_REGION": self.region},
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        is_ready = asyncio.Event()
        self._listening = asyncio.create_task(self._listen(self._process, is_ready))
        async with asyncio.timeout(_START_LIMIT_S):
            await is_ready.wait()
        return self.is_running

    async def _listen(self, process: asyncio.subprocess.Process, is_ready: asyncio.Event) -> None:
        assert process.stderr is not None  # noqa: S101 it is a pipe
        async for line in process.stderr:
            self._log.append(line.decode(errors="replace").rstrip())
            entry = _parsed(line)
            if entry.get("event") == "listening":
                self.address = entry["address"]
            if entry.get("event") == "ready":
                is_ready.set()
        await process.wait()
        is_ready.set()

    async def _until_ended(self) -> None:
        if self._process is not None and self._listening is not None:
            async with asyncio.timeout(_STOP_LIMIT_S):
                await self._process.wait()
                await self._listening

    def _tail(self) -> str:
        return "\n".join(self._log)


def _parsed(line: bytes) -> dict[str, str]:
    try:
        entry: dict[str, str] = json.loads(line)
    except ValueError:
        return {}
    return entry


@asynccontextmanager
async def regions_of_servers(
    names: Sequence[str], settings: Mapping[str, str], *, each: int = SERVERS_EACH
) -> AsyncIterator[list[list[Server]]]:
    """Running servers, so many in each region, all with the same settings.

    Raises ServerLost, also at the end when one has not lived so long.
    """
    regions = [[Server(name, settings) for _ in range(each)] for name in names]
    servers = [server for region in regions for server in region]
    try:
        for region in regions:
            await start_all(region)
        yield regions
        for server in servers:
            server.require_running()
    finally:
        for server in servers:
            await server.close()


async def start_all(servers: Sequence[Server]) -> None:
    """Side by side."""
    async with asyncio.TaskGroup() as starting:
        for server in servers:
            starting.create_task(server.start())
