"""Server processes at addresses that outlive them, in regions, each reached through a proxy that can spoil the way."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from inferwire import ClientConfig, Region

from tests.chaos.tcp_proxy import TcpProxy
from tests.server_process import ServerProcess, server_process

NAMES = ("near", "far", "farther")


class Place:
    """One address. The process behind it may die and be started again."""

    def __init__(self, options: dict[str, Any], settings: dict[str, Any]) -> None:
        self.port = _free_port()
        self.process: ServerProcess | None = None
        self.is_in_trouble = False
        """For whoever makes the trouble."""
        self.proxy = TcpProxy(f"127.0.0.1:{self.port}")
        self._options = options
        self._settings = settings
        self._stack = AsyncExitStack()

    @property
    def address(self) -> str:
        """Of the proxy."""
        return self.proxy.address

    async def start(self) -> None:
        """A new process."""
        server = server_process(port=self.port, engine_options=self._options, **self._settings)
        self.process = await self._stack.enter_async_context(server)

    async def restart(self) -> None:
        """A new process in the place of the old one, however that ended."""
        await self._stack.aclose()
        self._stack = AsyncExitStack()
        await self.start()

    def send(self, number: signal.Signals) -> None:
        """A signal to the process."""
        assert self.process is not None
        self.process.signal(number)

    async def drained(self) -> None:
        """End it as an operator does, and wait for that."""
        self.send(signal.SIGTERM)
        assert self.process is not None
        await self.process.until_exit(90)

    async def close(self) -> None:
        """End process and proxy."""
        await self._stack.aclose()
        await self.proxy.close()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@asynccontextmanager
async def places(*regions: Sequence[dict[str, Any]], **settings: Any) -> AsyncIterator[list[list[Place]]]:
    """For each region the engine options of its servers; started two at a time."""
    usual = {"step_base_s": 0.02, "max_running": 256}
    grid = [[Place(usual | each, settings) for each in region] for region in regions]
    every = [place for region in grid for place in region]
    try:
        for at in range(0, len(every), 2):
            await asyncio.gather(*(place.start() for place in every[at : at + 2]))
        for place in every:
            await place.proxy.start()
        yield grid
    finally:
        await asyncio.gather(*(place.close() for place in every))


def config_of(grid: Sequence[Sequence[Place]], **changes: Any) -> ClientConfig:
    """Regions `near`, `far` and `farther`."""
    regions = tuple(
        Region(name=name, priority=priority, endpoints=tuple(place.address for place in region))
        for priority, (name, region) in enumerate(zip(NAMES, grid, strict=False))
    )
    return ClientConfig(regions=regions, **changes)
