"""Two regions of two scripted servers, and signals for them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterable

from inferwire import ClientConfig, Region, ResilientChannel

from bench.serving.processes import free_port

STEP_S = 0.025
_START_LIMIT_S = 120.0


class Server:
    """A server process."""

    def __init__(self) -> None:
        self.address = f"127.0.0.1:{free_port()}"
        options = {"step_base_s": STEP_S, "max_running": 256}
        environment = os.environ | {"INFERWIRE_ENGINE_OPTIONS": json.dumps(options)}
        command = [sys.executable, "-m", "inferwire_server", "serve", "--engine", "scripted"]
        command += ["--port", self.address.rpartition(":")[2], "--metrics-port", "0"]
        self._process = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)

    def signal(self, number: signal.Signals) -> None:
        """Send it."""
        self._process.send_signal(number)

    async def ready(self) -> None:
        """Return when it says that it serves."""
        async with asyncio.timeout(_START_LIMIT_S), ResilientChannel(self.address) as channel:
            await channel.channel_ready()

    def end(self) -> None:
        """Kill it and wait."""
        self._process.kill()
        self._process.wait()


@contextlib.asynccontextmanager
async def servers(number: int) -> AsyncIterator[list[Server]]:
    """So many, ready."""
    running = [Server() for _ in range(number)]
    try:
        for server in running:
            await server.ready()
        yield running
    finally:
        for server in running:
            server.end()


@contextlib.asynccontextmanager
async def two_regions() -> AsyncIterator[tuple[list[Server], list[Server]]]:
    """The near and the far region, ready."""
    async with servers(4) as four:
        yield four[:2], four[2:]


def send(number: signal.Signals, servers: Iterable[Server]) -> None:
    """A signal to each."""
    for server in servers:
        server.signal(number)


def config_of(near: list[Server], far: list[Server]) -> ClientConfig:
    """The near region before the far one."""
    regions = (
        Region(name="near", endpoints=tuple(server.address for server in near)),
        Region(name="far", endpoints=tuple(server.address for server in far), priority=1),
    )
    return ClientConfig(regions=regions)
