"""Client CPU per token and per unary call, over the bare stub, in turns within one run."""

from __future__ import annotations

import time
from statistics import median
from typing import Any

from inferwire import ResilientChannel
from inferwire.v1 import generation_pb2, inference_pb2_grpc

from bench.client.token_server import TOKENS
from bench.figures import Figure, figure_of
from bench.serving.processes import away_from, module_server, serving_core

STREAMS = 10
CALLS = 250
REPETITIONS = 7
_REQUEST = generation_pb2.GenerateRequest(model="m", prompt="hi", max_output_tokens=TOKENS)


async def measure() -> list[Figure]:
    """About twenty seconds."""
    core = serving_core()
    async with module_server("bench.client.token_server", core=core) as server:
        with away_from(core):
            async with server.channel() as plain, ResilientChannel(server.address) as resilient:
                stubs = [inference_pb2_grpc.InferenceServiceStub(channel) for channel in (plain, resilient)]
                for stub in stubs:
                    await _tokens(stub)
                    await _unary(stub)
                streamed = [[await _tokens(stub) for stub in stubs] for _ in range(REPETITIONS)]
                called = [[await _unary(stub) for stub in stubs] for _ in range(REPETITIONS)]
    return [
        _over("CPU a token over the bare stub", streamed, 0, at_most=1.10),
        _over("time a token over the bare stub", streamed, 1),
        _over("CPU a unary call over the bare stub", called, 0, at_most=1.25),
        _over("time a unary call over the bare stub", called, 1),
    ]


Cost = tuple[float, float]
"""CPU and elapsed seconds of one token or call."""


async def _tokens(stub: Any) -> Cost:
    cpu, began, text = time.process_time(), time.perf_counter(), []
    for _ in range(STREAMS):
        async for event in stub.StreamGenerate(_REQUEST):
            if event.HasField("delta"):
                text.append(event.delta.text)  # noqa: PERF401 as readers do
    return (time.process_time() - cpu) / len(text), (time.perf_counter() - began) / len(text)


async def _unary(stub: Any) -> Cost:
    cpu, began = time.process_time(), time.perf_counter()
    for _ in range(CALLS):
        await stub.Generate(_REQUEST)
    return (time.process_time() - cpu) / CALLS, (time.perf_counter() - began) / CALLS


def _over(name: str, turns: list[list[Cost]], which: int, *, at_most: float | None = None) -> Figure:
    bare, ours = [turn[0][which] for turn in turns], [turn[1][which] for turn in turns]
    ratios = [one / other for one, other in zip(ours, bare, strict=True)]
    detail = f"{1e6 * median(ours):.1f} us against {1e6 * median(bare):.1f}"
    return figure_of(name, ratios, at_most=at_most, detail=detail)
