"""What an endpoint's health service says, followed as it changes. Speaks grpc.health.v1 without its package."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any

import grpc

from inferwire.policy.backoff import full_jitter

_WATCH = "/grpc.health.v1.Health/Watch"
_WHOLE_SERVER = b""
"""A HealthCheckRequest whose service is empty."""
_SERVING = 1
_BASE_DELAY_S = 0.1
_LONGEST_DELAY_S = 2.0


async def watch_health(channel: grpc.aio.Channel, said: Callable[[bool | None], None], rng: Random) -> None:
    """Tell `said` each change for ever: True, False, or None when the endpoint says nothing."""
    failures = 0
    while True:
        ask: Any = channel.unary_stream(_WATCH)
        watch = ask(_WHOLE_SERVER)
        try:
            async for answer in watch:
                failures = 0
                said(_status(answer) == _SERVING)
        except grpc.aio.AioRpcError as failure:
            said(None)
            if failure.code() is grpc.StatusCode.UNIMPLEMENTED:
                return
        finally:
            watch.cancel()
        await asyncio.sleep(full_jitter(failures, _BASE_DELAY_S, _LONGEST_DELAY_S, rng))
        failures += 1


async def watch_connection(channel: grpc.aio.Channel, said: Callable[[bool | None], None]) -> None:
    """The same for a name that stands for many servers: True while connected, None otherwise. Asks none of them."""
    while True:
        state = channel.get_state(try_to_connect=True)
        said(True if state is grpc.ChannelConnectivity.READY else None)
        await channel.wait_for_state_change(state)


def _status(answer: bytes) -> int:
    """The enum in field 1 of a HealthCheckResponse; the unknown default is not there at all."""
    return answer[1] if len(answer) >= 2 and answer[0] == 0x08 else 0
