"""A TCP proxy in the test's own loop that spoils what passes through it: holds, delays, half-closes, resets."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

_CHUNK = 65536
_NO_LINGER = struct.pack("ii", 1, 0)
"""Closing with this resets."""


class TcpProxy:
    """One address in front of another one. Its mishaps hold until `heal`."""

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._passes = asyncio.Event()
        self._passes.set()
        self._refuses = False
        self._delay_s = 0.0
        self.address = ""

    async def start(self) -> None:
        """Listen on a free port."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def hold(self) -> None:
        """A black hole: connections live, and nothing passes in either direction."""
        self._passes.clear()

    def delay(self, seconds: float) -> None:
        """Everything comes later by so much."""
        self._delay_s = seconds

    def reset(self) -> None:
        """Cut every connection; new ones are taken."""
        for writer in list(self._writers):
            _reset(writer)

    def cut(self) -> None:
        """Cut every connection, and each new one as soon as it is made."""
        self._refuses = True
        self.reset()

    def half_close(self) -> None:
        """Tell each side that the other one sends no more; what they send still passes."""
        for writer in list(self._writers):
            with suppress(OSError, RuntimeError):
                writer.write_eof()

    def heal(self) -> None:
        """From now on everything passes; what was held comes late."""
        self._refuses, self._delay_s = False, 0.0
        self._passes.set()

    async def close(self) -> None:
        """End it with every connection."""
        self.heal()
        self.reset()
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._refuses:
            _reset(writer)
            return
        try:
            there_reader, there_writer = await asyncio.open_connection(*self._target)
        except OSError:
            _reset(writer)
            return
        ends = {writer, there_writer}
        self._writers |= ends
        try:
            await asyncio.gather(self._pump(reader, there_writer), self._pump(there_reader, writer))
        finally:
            self._writers -= ends
            for each in ends:
                each.close()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, RuntimeError):
            while chunk := await reader.read(_CHUNK):
                if self._delay_s:
                    await asyncio.sleep(self._delay_s)
                await self._passes.wait()
                writer.write(chunk)
                await writer.drain()
            writer.write_eof()
            return
        _reset(writer)


def _reset(writer: asyncio.StreamWriter) -> None:
    end = writer.get_extra_info("socket")
    if end is not None:
        with suppress(OSError):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
    writer.transport.abort()


@asynccontextmanager
async def tcp_proxy(target: str) -> AsyncIterator[TcpProxy]:
    """A proxy in front of an address."""
    proxy = TcpProxy(target)
    await proxy.start()
    try:
        yield proxy
    finally:
        await proxy.close()
