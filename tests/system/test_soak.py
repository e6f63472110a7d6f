"""Thousands of streams leave nothing behind: neither in the server nor in its caller."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import threading
from pathlib import Path

import grpc
import pytest
from inferwire.v1 import generation_pb2, inference_pb2_grpc

from tests.server_process import server_process

WARM_UP, STREAMS, AT_ONCE = 500, 5000, 16
ALLOWED_GROWTH_MIB = 20.0


def rss_mib(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS"))


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


class Callers:
    """Half of the streams are cancelled at a random delta, a tenth comes over a new connection."""

    def __init__(self, address: str, draw: random.Random) -> None:
        self._address = address
        self._draw = draw
        self._channel = grpc.aio.insecure_channel(address)

    async def run(self, count: int) -> None:
        waiting = iter(range(count))

        async def caller() -> None:
            for _ in waiting:
                await self._one()

        await asyncio.gather(*(caller() for _ in range(AT_ONCE)))

    async def _one(self) -> None:
        if self._draw.random() < 0.1:
            async with grpc.aio.insecure_channel(self._address, options=[("grpc.use_local_subchannel_pool", 1)]) as new:
                await self._stream(new)
        else:
            await self._stream(self._channel)

    async def _stream(self, channel: grpc.aio.Channel) -> None:
        request = generation_pb2.GenerateRequest(model="scripted", prompt="soak", max_output_tokens=12)
        call = inference_pb2_grpc.InferenceServiceStub(channel).StreamGenerate(request, timeout=60)
        leaves_after = self._draw.randrange(1, 12) if self._draw.random() < 0.5 else None
        deltas = 0
        async for event in call:
            deltas += event.HasField("delta")
            if deltas == leaves_after:
                call.cancel()
                return
        assert leaves_after is None or deltas < leaves_after

    async def close(self) -> None:
        await self._channel.close()


@pytest.mark.slow
@pytest.mark.case("H25")
@pytest.mark.timeout(400)
async def test_five_thousand_streams_leave_nothing_behind() -> None:
    async with server_process(engine_options={"step_base_s": 0.002}) as server:
        pid, me = server.process.pid, os.getpid()
        callers = Callers(server.address, random.Random(25))
        await callers.run(WARM_UP)
        gc.collect()
        before = rss_mib(pid), rss_mib(me)
        held = descriptors(pid), len(asyncio.all_tasks()), threading.active_count()
        await callers.run(STREAMS)
        gc.collect()
        after = rss_mib(pid), rss_mib(me)
        left = descriptors(pid), len(asyncio.all_tasks()), threading.active_count()
        await callers.close()
    assert after[0] - before[0] <= ALLOWED_GROWTH_MIB
    assert after[1] - before[1] <= ALLOWED_GROWTH_MIB
    assert left[0] <= held[0] + 4
    assert left[1:] == held[1:]
