"""Whether a server that owes a reply still answers anything at all."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import grpc

_CHECK = "/grpc.health.v1.Health/Check"
_WHOLE_SERVER = b""
"""A HealthCheckRequest whose service is empty."""


class SignOfLife:
    """Asks one endpoint's health service; who asks while it is being asked waits for the same answer."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._ask: Any = channel.unary_unary(_CHECK)
        self._asking: asyncio.Task[bool] | None = None

    async def within(self, seconds: float) -> bool:
        """False when nothing came back in time. Any status is an answer, and so is a lost connection."""
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._answers(seconds), name="sign of life")
        return await asyncio.shield(self._asking)

    async def close(self) -> None:
        """Stop asking."""
        if self._asking is not None:
            self._asking.cancel()
            with suppress(asyncio.CancelledError):
                await self._asking

    async def _answers(self, seconds: float) -> bool:
        try:
            await self._ask(_WHOLE_SERVER, timeout=seconds)
        except grpc.aio.AioRpcError as error:
            return error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED
        return True
