"""Callers that call again and again, each by its way, and hold what they get against undisturbed answers."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from itertools import count
from typing import Any

import grpc
from inferwire import ClientConfig, Region, ResilientChannel
from inferwire.settings import FailoverPolicy
from inferwire.v1 import generation_pb2, inference_pb2_grpc

from tools.demo_regions.envoy import Envoy
from tools.demo_regions.servers import Server
from tools.demo_regions.tally import Book, Tally, Way

DEADLINE_S = 60.0
PROMPTS = 8
_SHARES_EVERY_S = 0.5
_SLOW_START_S = 4.0
"""Shorter than the default, as everything in a demonstration."""


@dataclass(frozen=True, kw_only=True)
class Load:
    """Who calls, for what."""

    model: str
    callers: int
    """Of each way."""
    unary_tokens: int
    stream_tokens: int
    pause_s: float
    """Between two calls of a caller."""

    def request(self, number: int, *, is_stream: bool) -> generation_pb2.GenerateRequest:
        """One of `PROMPTS` different ones."""
        request = generation_pb2.GenerateRequest(model=self.model, prompt=f"Tell me about river number {number}.")
        request.max_output_tokens = self.stream_tokens if is_stream else self.unary_tokens
        request.sampling.seed, request.sampling.temperature = number, 1.0
        request.stop.ignore_end_of_sequence = True
        request.output.token_ids = True
        return request


class Traffic:
    """Every caller. Calls are counted in the act in which they end."""

    def __init__(self, load: Load, book: Book, near: Sequence[Server], far: Sequence[Server], envoy: Envoy) -> None:
        self._load = load
        self._book = book
        self._near, self._far = near, far
        self._envoy = envoy
        self._unary: list[list[int]] = []
        self._streamed: list[list[int]] = []
        self.begun: Counter[Way] = Counter()
        """Streams that have had tokens, but not yet half of them."""
        self.envoy_sent: Counter[str] = Counter()
        """Calls that Envoy has sent, by region, since it started."""

    @property
    def callers(self) -> int:
        """Of each way; each has one call under way at most."""
        return self._load.callers

    async def learn(self) -> None:
        """Ask a far server, which nothing disturbs, for every answer."""
        async with grpc.aio.insecure_channel(self._far[0].address) as channel:
            stub = inference_pb2_grpc.InferenceServiceStub(channel)
            for is_stream, answers in ((False, self._unary), (True, self._streamed)):
                asked = [stub.Generate(self._load.request(one, is_stream=is_stream)) for one in range(PROMPTS)]
                answers += [list(reply.outputs[0].token_ids) for reply in await asyncio.gather(*asked)]

    @asynccontextmanager
    async def flowing(self) -> AsyncIterator[None]:
        """Call while the body runs. What goes wrong in a caller, other than its calls, ends the body too."""
        async with AsyncExitStack() as stack:
            direct = await stack.enter_async_context(ResilientChannel(self._direct()))
            plain = await stack.enter_async_context(grpc.aio.insecure_channel(self._envoy.address))
            through = await stack.enter_async_context(ResilientChannel(self._through_envoy()))
            stubs = {
                Way.UNARY_DIRECT: direct,
                Way.UNARY_ENVOY: plain,
                Way.STREAM_DIRECT: direct,
                Way.STREAM_ENVOY: through,
            }
            callers = [
                self._call_for_ever(way, inference_pb2_grpc.InferenceServiceStub(channel), first)
                for way, channel in stubs.items()
                for first in range(self._load.callers)
            ]
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(work) for work in (*callers, self._watch_shares())]
                yield
                for task in tasks:
                    task.cancel()

    def _direct(self) -> ClientConfig:
        regions = [
            Region(name=servers[0].region, priority=priority, endpoints=tuple(one.address for one in servers))
            for priority, servers in enumerate((self._near, self._far))
        ]
        return ClientConfig(regions=tuple(regions), failover=FailoverPolicy(slow_start_s=_SLOW_START_S))

    def _through_envoy(self) -> ClientConfig:
        return ClientConfig(regions=(Region(name="envoy", endpoints=(self._envoy.address,), mesh=True),))

    async def _call_for_ever(self, way: Way, stub: Any, first: int) -> None:
        is_stream = way in (Way.STREAM_DIRECT, Way.STREAM_ENVOY)
        for number in count(first):
            request = self._load.request(number % PROMPTS, is_stream=is_stream)
            if is_stream:
                await self._stream(way, stub.StreamGenerate(request, timeout=DEADLINE_S), number % PROMPTS)
            else:
                await self._ask(way, stub.Generate(request, timeout=DEADLINE_S), number % PROMPTS)
            await asyncio.sleep(self._load.pause_s)

    async def _ask(self, way: Way, call: Any, number: int) -> None:
        began, error = time.monotonic(), ""
        try:
            reply = await call
            error = "" if list(reply.outputs[0].token_ids) == self._unary[number] else "other tokens"
        except grpc.aio.AioRpcError as refused:
            error = _said(refused)
        await self._count(way, call, began, error)

    async def _stream(self, way: Way, call: Any, number: int) -> None:
        began, error = time.monotonic(), ""
        ids: list[int] = []
        doubled, gap_s, latest, is_begun = 0, 0.0, None, False
        try:
            async for event in call:
                if event.HasField("delta"):
                    now = time.monotonic()
                    gap_s = max(gap_s, now - (latest or now))
                    latest = now
                    doubled += max(0, len(ids) - event.delta.token_offset)
                    ids += event.delta.token_ids
                    was_begun, is_begun = is_begun, 2 * len(ids) < self._load.stream_tokens
                    self.begun[way] += is_begun - was_begun
            error = "" if ids == self._streamed[number] else "other tokens"
        except grpc.aio.AioRpcError as refused:
            error = _said(refused)
        self.begun[way] -= is_begun
        tally = await self._count(way, call, began, error)
        tally.doubled += doubled
        tally.longest_gap_s = max(tally.longest_gap_s, gap_s)

    async def _count(self, way: Way, call: Any, began: float, error: str) -> Tally:
        trailers = await call.trailing_metadata()
        facts = [(key, str(value)) for key, value in trailers or ()]
        regions = [value.partition("/")[0] for key, value in facts if key == "x-inferwire-served-by"]
        tally = self._book.tally(way)
        tally.ended(time.monotonic() - began, region="".join(regions), error=error)
        tally.resumed += any(key == "x-inferwire-resumed-at" for key, _ in facts)
        return tally

    async def _watch_shares(self) -> None:
        places = {server.address: server.region for server in (*self._near, *self._far)}
        while True:
            hosts = await self._envoy.hosts()
            self.envoy_sent = Counter()
            for address, host in hosts.items():
                self.envoy_sent[places[address]] += host["counts"]["rq_total"]
            await asyncio.sleep(_SHARES_EVERY_S)


def _said(refused: grpc.aio.AioRpcError) -> str:
    return f"{refused.code().name} {(refused.details() or '')[:80]}"
