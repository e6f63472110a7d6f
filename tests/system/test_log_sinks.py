"""Standard error of a real process leads nowhere, in each of its ways: calls, health and SIGTERM do not notice."""

from __future__ import annotations

import asyncio
import os
import select
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import grpc
import psutil
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from inferwire.v1 import inference_pb2_grpc

from tests.polling import until_it_says
from tests.server.metrics_pages import answer, samples
from tests.server_process import HANG_BOUND_S
from tests.serving import error_info, refusal, request

SERVING = health_pb2.HealthCheckResponse.SERVING
CALL_S = 20.0
"""Far below a hang, far above what a call of a few tokens takes."""


def full_disk() -> tuple[int, int | None]:
    return os.open("/dev/full", os.O_WRONLY), None


def closed_pipe() -> tuple[int, int | None]:
    reading, writing = os.pipe()
    os.close(reading)
    return writing, None


def unread_pipe() -> tuple[int, int | None]:
    """Full already, and blocking for whoever writes."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    with suppress(BlockingIOError):
        while True:
            os.write(writing, b"\n" * select.PIPE_BUF)
    os.set_blocking(writing, True)
    return writing, reading


@asynccontextmanager
async def logging_into(
    sink: Callable[[], tuple[int, int | None]], address: str
) -> AsyncIterator[asyncio.subprocess.Process]:
    """A server whose log nobody can read, so that its addresses have to be known otherwise."""
    written, unread = sink()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "inferwire_server", "serve", "--engine", "scripted", "--host", address),
        *("--metrics-port", "0", "--drain-settle", "0", "--log-level", "debug"),
        stdout=written,
        stderr=written,
    )
    os.close(written)
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        if unread is not None:
            os.close(unread)


def dropped(process: asyncio.subprocess.Process) -> dict[str, float]:
    """Lines by reason, as its page says."""
    (port,) = (
        it.laddr.port for it in psutil.Process(process.pid).net_connections("tcp") if it.status == psutil.CONN_LISTEN
    )
    found = [it for it in samples(answer(port).body) if it.name == "inferwire_log_lines_dropped_total"]
    return {it.labels["reason"]: it.value for it in found}


@pytest.mark.parametrize("sink", [full_disk, closed_pipe, unread_pipe])
async def test_a_log_that_goes_nowhere_keeps_no_call_and_no_signal(
    tmp_path: Path, sink: Callable[[], tuple[int, int | None]]
) -> None:
    address = f"unix:{tmp_path}/s"
    async with logging_into(sink, address) as process, grpc.aio.insecure_channel(address) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        inference = inference_pb2_grpc.InferenceServiceStub(channel)

        async def check() -> object:
            try:
                answered = await health.Check(health_pb2.HealthCheckRequest(), timeout=CALL_S)
            except grpc.aio.AioRpcError as error:
                return error.code()
            return answered.status

        await until_it_says(SERVING, check, HANG_BOUND_S)
        for _ in range(20):
            await inference.Generate(request(max_output_tokens=1), timeout=CALL_S)
        bad = await refusal(inference.Generate(request(model="unknown"), timeout=CALL_S))
        assert error_info(bad).reason == "MODEL_NOT_FOUND"
        assert await check() == SERVING

        if sink is not unread_pipe:

            async def every_line() -> bool:
                return (await asyncio.to_thread(dropped, process))["write_failed"] >= 20

            await until_it_says(True, every_line)
        process.terminate()
        assert await asyncio.wait_for(process.wait(), HANG_BOUND_S) == 0
