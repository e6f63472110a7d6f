"""A client's channel in front of fake servers, with a clock that only waiting moves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from random import Random
from typing import Any

import grpc
import pytest
from inferwire import BlockingResilientChannel, ClientConfig, Region, ResilientChannel, ResilientRpcError
from inferwire.channels import Fleet
from inferwire.testing import MODEL, FakeServer, Script, fake_server
from inferwire.v1 import generation_pb2, inference_pb2_grpc


class Waits:
    """Time that passes only while a call waits to try again; it notes how long."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self.slept: list[float] = []

    def clock(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds
        await asyncio.sleep(0)

    def fleet(self) -> Any:
        """For a channel's `open_fleet`."""
        return partial(Fleet, rng=Random(3), clock=self.clock, sleep=self.sleep)


def config_of(*servers: FakeServer, **changes: Any) -> ClientConfig:
    """A region for each server, the first one nearest: `r0`, `r1`…"""
    regions = tuple(
        Region(name=f"r{number}", endpoints=(server.address,), priority=number) for number, server in enumerate(servers)
    )
    return ClientConfig(regions=regions, **changes)


@asynccontextmanager
async def fakes(*scripts: Script | tuple[Script, ...]) -> AsyncIterator[list[FakeServer]]:
    """A fake server for each argument, which has its script or its scripts."""
    async with fake_server(*_some(scripts[0])) as first:
        if len(scripts) == 1:
            yield [first]
            return
        async with fakes(*scripts[1:]) as rest:
            yield [first, *rest]


def _some(scripts: Script | tuple[Script, ...]) -> tuple[Script, ...]:
    return scripts if isinstance(scripts, tuple) else (scripts,)


def stub_of(channel: grpc.aio.Channel | grpc.Channel) -> Any:
    return inference_pb2_grpc.InferenceServiceStub(channel)


def request(**fields: Any) -> generation_pb2.GenerateRequest:
    return generation_pb2.GenerateRequest(**({"model": MODEL, "prompt": "hi"} | fields))


async def text_of(call: Any) -> str:
    """Of a unary call or a stream, to its end."""
    if hasattr(call, "__aiter__"):
        return "".join([event.delta.text async for event in call])
    return str((await call).outputs[0].text)


def blocking_text_of(channel: BlockingResilientChannel, *, is_stream: bool) -> str:
    stub = stub_of(channel)
    if is_stream:
        return "".join(event.delta.text for event in stub.StreamGenerate(request()))
    return str(stub.Generate(request()).outputs[0].text)


@asynccontextmanager
async def channel_to(
    *servers: FakeServer, waits: Waits | None = None, **changes: Any
) -> AsyncIterator[ResilientChannel]:
    """An open channel whose waiting is `waits`, or real."""
    config = config_of(*servers, **changes)
    options = {} if waits is None else {"open_fleet": waits.fleet()}
    async with ResilientChannel(config, **options) as channel:
        yield channel


async def failure(call: Any) -> ResilientRpcError:
    """The error that a call ends with."""
    with pytest.raises(ResilientRpcError) as caught:
        await text_of(call)
    return caught.value
