"""Eight readers that stop reading, on a real process: bounded memory, and the others' streams keep their pace."""

from __future__ import annotations

import asyncio
import itertools
import statistics
import time
from typing import Any

import grpc
import psutil
import pytest
from inferwire.v1 import inference_pb2_grpc

from tests.server_process import ServerProcess, server_process
from tests.serving import request

MIB = 1024 * 1024
SMALL_WINDOW = [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 16384)]
PAIRS = 5


def memory(server: ServerProcess) -> int:
    rss: int = psutil.Process(server.process.pid).memory_info().rss
    return rss


async def gaps(inference: Any, output_tokens: int) -> list[float]:
    """Seconds between the messages of one stream."""
    came = [
        time.perf_counter()
        async for event in inference.StreamGenerate(request(max_output_tokens=output_tokens))
        if event.WhichOneof("event") == "delta"
    ]
    return [after - before for before, after in itertools.pairwise(came)]


async def p99_of_four_streams(inference: Any) -> float:
    measured = await asyncio.gather(*[gaps(inference, 100) for _ in range(4)])
    return statistics.quantiles([gap for each in measured for gap in each], n=100)[98]


async def stalled(inference: Any, number: int) -> Any:
    """A stream of large messages of which only the first is read."""
    large = request(max_output_tokens=4000, output={"top_logprobs": 20}, sampling={"seed": number})
    stream = inference.StreamGenerate(large)
    await stream.read()
    return stream


@pytest.mark.slow
async def test_eight_readers_that_stop_cost_bounded_memory_and_nobody_else_s_pace() -> None:
    options = {"step_base_s": 0.005, "max_running": 32}
    async with server_process(engine_options=options, stall_time=1.0) as server:
        async with grpc.aio.insecure_channel(server.address) as good:
            inference = inference_pb2_grpc.InferenceServiceStub(good)
            await p99_of_four_streams(inference)
            before, ratios, peak = memory(server), [], 0
            for _ in range(PAIRS):
                control = await p99_of_four_streams(inference)
                async with grpc.aio.insecure_channel(server.address, options=SMALL_WINDOW) as bad:
                    stopped = inference_pb2_grpc.InferenceServiceStub(bad)
                    streams = await asyncio.gather(*[stalled(stopped, number) for number in range(8)])
                    ratios.append(await p99_of_four_streams(inference) / control)
                    peak = max(peak, memory(server))
                    del streams
        assert peak - before <= 50 * MIB
        assert statistics.median(ratios) <= 3.0, ratios
