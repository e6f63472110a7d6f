"""One gRPC channel to an endpoint, with what looks after it. It can be left for a new one while calls run on it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import Any

import grpc

from inferwire.health_watch import watch_connection, watch_health
from inferwire.methods import Method
from inferwire.sign_of_life import SignOfLife


class Connection:
    """Opened when it is made, in a running loop."""

    def __init__(
        self,
        target: str,
        options: list[tuple[str, Any]],
        credentials: grpc.ChannelCredentials | None,
        *,
        said: Callable[[bool | None], None],
        rng: Random,
        stands_for_many: bool,
        name: str,
    ) -> None:
        """`said` hears of the endpoint's health; without credentials it speaks no TLS."""
        self.channel = (
            grpc.aio.insecure_channel(target, options=options)
            if credentials is None
            else grpc.aio.secure_channel(target, credentials, options=options)
        )
        self.sign_of_life = SignOfLife(self.channel)
        self._callables: dict[Method, Any] = {}
        self._calls: set[Any] | None = None if credentials is None else set()
        """Under way, where the connection may be left for one with newer certificates."""
        self._is_idle = asyncio.Event()
        # What one of many servers says of itself is no reason to leave them all.
        watch = watch_connection(self.channel, said) if stands_for_many else watch_health(self.channel, said, rng)
        self._watching = asyncio.create_task(watch, name=f"health {name}")

    def start(self, method: Method, request: Any, **options: Any) -> Any:
        """Start a call."""
        make = self._callables.get(method)
        if make is None:
            opened = self.channel.unary_stream if method.is_stream else self.channel.unary_unary
            make = self._callables[method] = opened(method.path, method.serialize, method.deserialize)
        call = make(request, **options)
        if self._calls is not None:
            self._calls.add(call)
            call.add_done_callback(self._ended)
        return call

    async def leave(self) -> None:
        """Close once the calls on it have ended; its health counts no more."""
        await self._stop_watching()
        while self._calls:
            self._is_idle.clear()
            await self._is_idle.wait()
        await self.channel.close()

    async def close(self) -> None:
        """Close with every call on it."""
        await self._stop_watching()
        await self.channel.close()

    async def _stop_watching(self) -> None:
        self._watching.cancel()
        with suppress(asyncio.CancelledError):
            await self._watching
        await self.sign_of_life.close()

    def _ended(self, call: Any) -> None:
        if self._calls is not None:
            self._calls.discard(call)
            if not self._calls:
                self._is_idle.set()
