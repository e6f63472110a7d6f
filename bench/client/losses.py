"""What callers see of a lost endpoint, a lost region, a frozen one, and of a total outage."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import Callable
from typing import Any

import grpc
from inferwire import AttemptEnded, Observer, ResilientChannel, ResilientRpcError
from inferwire.settings import StallPolicy
from inferwire.v1 import generation_pb2, inference_pb2_grpc

from bench.client.regions import STEP_S, Server, config_of, send, two_regions
from bench.figures import Figure
from bench.quantiles import quantile

STREAMS = 100
TOKENS = 60
STALL_S = 0.5


class _Reader:
    """One stream: its tokens, and the longest time between two of them."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.longest_gap_s = self.first_token_s = 0.0
        self.was_resumed = False
        self.error: Exception | None = None

    async def read(self, stub: Any, seed: int) -> None:
        request = generation_pb2.GenerateRequest(model="scripted", prompt=f"story {seed}", max_output_tokens=TOKENS)
        request.sampling.seed, request.sampling.temperature, request.output.token_ids = seed, 1.0, True
        request.stop.ignore_end_of_sequence = True
        call = stub.StreamGenerate(request, timeout=60)
        began, last = time.monotonic(), None
        try:
            async for event in call:
                if event.HasField("delta"):
                    now = time.monotonic()
                    self.first_token_s = self.first_token_s or now - began
                    self.longest_gap_s = max(self.longest_gap_s, now - (now if last is None else last))
                    last = now
                    self.ids += event.delta.token_ids
        except grpc.aio.AioRpcError as error:
            self.error = error
        trailers = await call.trailing_metadata() or ()
        self.was_resumed = any(key == "x-inferwire-resumed-at" for key, _ in trailers)


async def measure() -> list[Figure]:
    """About a minute and a half."""
    figures = [
        await _gap("an endpoint killed: gap p99", lambda near, _: send(signal.SIGKILL, near[:1]), at_most=60),
        await _gap("a region killed: gap p99", lambda near, _: send(signal.SIGKILL, near), at_most=200),
        await _gap(
            "a region frozen: gap p99",
            lambda near, _: send(signal.SIGSTOP, near),
            at_most=1000 * STALL_S + 50,
            stall=StallPolicy(first_token_s=1.0, between_tokens_s=STALL_S, progress_interval_s=0.2),
        ),
    ]
    return [*figures, await _grpc_alone(), *await _outage()]


async def _gap(
    name: str, strike: Callable[[list[Server], list[Server]], None], *, at_most: float, **changes: Any
) -> Figure:
    async with two_regions() as (near, far):
        config = config_of(near, far).with_changes(**changes)
        async with ResilientChannel(config) as channel:
            undisturbed = await _streams(channel)
            struck = await _streams(channel, lambda: strike(near, far))
    gaps = [1000 * (one.longest_gap_s - STEP_S) for one in struck if one.was_resumed]
    lost = sum(one.error is not None or len(one.ids) < TOKENS for one in struck)
    wrong = sum(one.ids != other.ids for one, other in zip(struck, undisturbed, strict=True))
    calm = quantile([1000 * (one.longest_gap_s - STEP_S) for one in undisturbed], 0.99)
    detail = f"{len(gaps)} of {STREAMS} resumed, {lost} lost, {wrong} with other tokens; "
    # What a new stream waits for its first token is in every gap too.
    first = [1000 * one.first_token_s for one in undisturbed]
    detail += f"p50 {quantile(gaps, 0.5):.0f} ms; without a fault p99 {calm:.0f} ms, "
    detail += f"first tokens p50 {quantile(first, 0.5):.0f}, p99 {quantile(first, 0.99):.0f} ms"
    p99 = quantile(gaps, 0.99)
    return Figure(name=name, value=p99, unit="ms", high=max(gaps), low=min(gaps), at_most=at_most, detail=detail)


_RETRIED = {
    "loadBalancingConfig": [{"round_robin": {}}],
    "methodConfig": [
        {
            "name": [{}],
            "retryPolicy": {
                "maxAttempts": 4,
                "initialBackoff": "0.05s",
                "maxBackoff": "2s",
                "backoffMultiplier": 2,
                "retryableStatusCodes": ["UNAVAILABLE"],
            },
        }
    ],
}


async def _grpc_alone() -> Figure:
    """What gRPC's own balancing and retries make of an endpoint that is killed: after a first message they end."""
    async with two_regions() as (near, far):
        target = "ipv4:" + ",".join(server.address for server in (*near, *far))
        options = [("grpc.service_config", json.dumps(_RETRIED)), ("grpc.enable_retries", 1)]
        async with grpc.aio.insecure_channel(target, options=options) as channel:
            stub: Any = inference_pb2_grpc.InferenceServiceStub(channel)
            await stub.Generate(generation_pb2.GenerateRequest(model="scripted", prompt="hi", max_output_tokens=1))
            struck = await _streams(channel, lambda: send(signal.SIGKILL, near[:1]))
    lost = sum(one.error is not None for one in struck)
    detail = f"of {STREAMS}; round_robin over four servers and a retryPolicy of four attempts"
    return Figure(name="an endpoint killed: streams lost by gRPC alone", value=lost, detail=detail)


async def _streams(channel: grpc.aio.Channel, strike: Callable[[], None] | None = None) -> list[_Reader]:
    stub: Any = inference_pb2_grpc.InferenceServiceStub(channel)
    readers = [_Reader() for _ in range(STREAMS)]
    running = [asyncio.create_task(reader.read(stub, seed)) for seed, reader in enumerate(readers)]
    if strike is not None:
        while not all(len(reader.ids) >= 5 or reader.error for reader in readers):  # noqa: ASYNC110 all of them at once
            await asyncio.sleep(0.005)
        strike()
    await asyncio.gather(*running)
    return readers


class _Counter(Observer):
    def __init__(self) -> None:
        self.attempts = 0

    def attempt_ended(self, attempt: AttemptEnded) -> None:
        self.attempts += 1


async def _outage() -> list[Figure]:
    """200 calls a second for three seconds while every server is dead."""
    counter = _Counter()
    times: list[float] = []
    async with two_regions() as (near, far), ResilientChannel(config_of(near, far), observer=counter) as channel:
        stub: Any = inference_pb2_grpc.InferenceServiceStub(channel)
        request = generation_pb2.GenerateRequest(model="scripted", prompt="hi", max_output_tokens=1)
        await stub.Generate(request)
        send(signal.SIGKILL, [*near, *far])
        counter.attempts = 0
        for _ in range(600):
            before, began = counter.attempts, time.perf_counter()
            try:
                await stub.Generate(request, timeout=10)
            except ResilientRpcError:
                if counter.attempts == before:
                    times.append(1000 * (time.perf_counter() - began))
            await asyncio.sleep(0.005)
    return [
        Figure(name="total outage: attempts a call", value=counter.attempts / 600, at_most=1.1, detail="600 calls"),
        Figure(
            name="total outage: local failure p99",
            value=quantile(times, 0.99),
            unit="ms",
            at_most=5,
            detail=f"{len(times)} calls failed without an attempt; p50 {quantile(times, 0.5):.2f} ms",
        ),
    ]
