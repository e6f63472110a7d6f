"""The engine dies in each of its ways under sixteen streams of a real process: every caller learns of it in time."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2

from tests.checkpoint_folder import write_checkpoint
from tests.serving import error_info, refusal, rest_of, retry_hint_ms
from tests.standin_server import StandinServer, standin_server, toy_request

STREAMS = 16
STEP_S = 0.02
LAST_STEP = 100
"""Time enough for all streams to run before."""
ENDLESS = 50_000
"""Tokens of an output that cannot be complete before the last step."""
PATIENCE_S = 2.0
"""How long the watchdog bears silence or a blocked loop; a death that shows is found sooner."""
EXIT_S = 10.0
OPTIONS = {"max_batch_size": STREAMS, "silence_s": PATIENCE_S, "loop_stuck_s": PATIENCE_S, "exit_s": EXIT_S}
FAULTS = [
    pytest.param("worker_dies_at_step", id="dead worker"),
    pytest.param("worker_silent_at_step", id="silent worker"),
    pytest.param("fatal_at_step", id="fatal error that blocks the engine's loop"),
    pytest.param("reader_stuck_at_step", id="engine's loop blocked without a word", marks=pytest.mark.slow),
]


class Reader:
    """One stream, read until it ends."""

    def __init__(self, server: StandinServer, number: int) -> None:
        self._stream: Any = server.inference.StreamGenerate(toy_request(f"{number}", max_output_tokens=ENDLESS))
        self._heard_at = 0.0
        self.silent_s = 0.0
        """From the last word of the engine to the end."""

    async def started(self) -> None:
        assert (await self._stream.read()).WhichOneof("event") == "started"
        self._heard_at = time.monotonic()

    async def ended(self) -> grpc.aio.AioRpcError:
        error = await refusal(self._deltas())
        self.silent_s = time.monotonic() - self._heard_at
        return error

    async def _deltas(self) -> None:
        async for event in rest_of(self._stream):
            assert event.WhichOneof("event") == "delta"
            self._heard_at = time.monotonic()


async def watched(server: StandinServer, service: str) -> int:
    """The last status that a watcher is told."""
    status: int = health_pb2.HealthCheckResponse.UNKNOWN
    async for answer in server.health.Watch(health_pb2.HealthCheckRequest(service=service)):
        status = answer.status
    return status


def assert_told(error: grpc.aio.AioRpcError) -> None:
    """A typed end, or a lost connection."""
    assert error.code() is grpc.StatusCode.UNAVAILABLE
    if "grpc-status-details-bin" in dict(error.trailing_metadata() or ()):
        info = error_info(error)
        assert (info.reason, info.metadata["started"], retry_hint_ms(error)) == ("ENGINE_DOWN", "true", None)


def assert_refused(error: grpc.aio.AioRpcError) -> None:
    """The end of a call that waited: it may be repeated elsewhere."""
    info = error_info(error)
    assert (error.code(), info.reason) == (grpc.StatusCode.UNAVAILABLE, "ENGINE_DOWN")
    assert info.metadata["started"] == "false"
    assert retry_hint_ms(error) is not None


@pytest.mark.parametrize("fault", FAULTS)
async def test_sixteen_callers_are_told_in_time_and_the_process_ends(fault: str, tmp_path: Path) -> None:
    temperament = {fault: LAST_STEP, "step_s": STEP_S}
    folder = write_checkpoint(tmp_path, context_tokens=2 * ENDLESS, kv_blocks=2**20, **temperament)
    async with standin_server(folder, engine_options=OPTIONS, canary_interval=3600) as server:
        readers = [Reader(server, number) for number in range(STREAMS)]
        await asyncio.gather(*[reader.started() for reader in readers])
        watches = asyncio.gather(*[watched(server, service) for service in ("readiness", "liveness")])
        waiting = asyncio.create_task(refusal(server.inference.Generate(toy_request())), name="waits")
        for error in await asyncio.gather(*[reader.ended() for reader in readers]):
            assert_told(error)
        assert max(reader.silent_s for reader in readers) < PATIENCE_S + 2.0
        assert_refused(await waiting)
        assert await watches == [health_pb2.HealthCheckResponse.NOT_SERVING] * 2
        assert await server.process.until_exit(EXIT_S + 5.0) == 70


@pytest.mark.slow
async def test_an_engine_that_does_not_unload_cannot_keep_the_process(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, shutdown_hangs=True)
    async with standin_server(folder, engine_options={"teardown_s": 1.0}) as server:
        server.process.signal()
        assert await server.process.until_exit() == 70
