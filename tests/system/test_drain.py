"""SIGTERM on a real process: nothing running is broken, nothing new is started, and the end comes as soon as it can."""

from __future__ import annotations

import asyncio
import signal
from typing import Any, Self

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from inferwire.v1 import inference_pb2_grpc

from tests.server_process import ServerProcess, server_process
from tests.serving import error_info, refusal, request, rest_of, retry_hint_ms

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
SOON_S = 10.0
"""Far below every drain limit here, and far above what an exit takes."""


class Caller:
    """One channel to a server process."""

    def __init__(self, server: ServerProcess) -> None:
        self.channel = grpc.aio.insecure_channel(server.address)
        self.inference = inference_pb2_grpc.InferenceServiceStub(self.channel)
        self.health = health_pb2_grpc.HealthStub(self.channel)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.channel.close()

    async def started(self, output_tokens: int) -> Any:
        """A stream that the engine has taken."""
        stream: Any = self.inference.StreamGenerate(request(max_output_tokens=output_tokens))
        assert (await stream.read()).WhichOneof("event") == "started"
        return stream

    async def watch(self) -> Any:
        """A health watch that has shown its first status."""
        watch = self.health.Watch(health_pb2.HealthCheckRequest())
        assert (await watch.read()).status == SERVING
        return watch

    async def check(self) -> int:
        status: int = (await self.health.Check(health_pb2.HealthCheckRequest())).status
        return status


async def until_refused(caller: Caller) -> None:
    """Call and call again."""
    async with asyncio.timeout(SOON_S):
        while True:
            await caller.inference.Generate(request(max_output_tokens=1))


async def assert_whole(stream: Any, output_tokens: int) -> None:
    """The rest of a stream has every token and a normal end."""
    events = [event async for event in rest_of(stream)]
    assert sum(event.delta.token_count for event in events) == output_tokens
    assert events[-1].completed.usage.output_tokens == output_tokens


@pytest.mark.case("H03")
async def test_sigterm_lets_running_work_end_refuses_new_work_and_exits_soon_after() -> None:
    async with server_process() as server, Caller(server) as old, Caller(server) as new:
        stream, watch = await old.started(600), await old.watch()
        server.signal()
        assert (await watch.read()).status == NOT_SERVING
        assert await old.check() == NOT_SERVING
        for caller in (old, new):
            error = await refusal(caller.inference.Generate(request()))
            assert (error.code(), error_info(error).reason) == (grpc.StatusCode.UNAVAILABLE, "DRAINING")
            assert retry_hint_ms(error) is not None
        await assert_whole(stream, 600)
        assert await server.until_exit(SOON_S) == 0
        assert await watch.read() is grpc.aio.EOF


@pytest.mark.case("H03")
async def test_fifty_streams_and_a_watch_are_drained_without_a_broken_one() -> None:
    async with server_process(engine_options={"max_running": 64}) as server, Caller(server) as caller:
        streams = await asyncio.gather(*[caller.started(100) for _ in range(50)])
        await caller.watch()
        server.signal()
        await asyncio.gather(*[assert_whole(stream, 100) for stream in streams])
        assert await server.until_exit(SOON_S) == 0


async def test_late_calls_are_served_inside_the_settle_window_and_refused_after_it() -> None:
    async with server_process(drain_settle=2.0) as server, Caller(server) as caller:
        stream, watch = await caller.started(1000), await caller.watch()
        server.signal()
        assert (await watch.read()).status == NOT_SERVING
        assert (await caller.inference.Generate(request())).outputs[0].text
        assert error_info(await refusal(until_refused(caller))).reason == "DRAINING"
        stream.cancel()
        assert await server.until_exit(SOON_S) == 0


async def test_open_watches_do_not_delay_the_end_of_an_idle_server() -> None:
    async with server_process() as server, Caller(server) as caller:
        watches = [await caller.watch() for _ in range(5)]
        server.signal()
        assert await server.until_exit(SOON_S) == 0
        for watch in watches:
            assert (await watch.read()).status == NOT_SERVING


async def test_the_log_is_whole_up_to_the_end_of_the_process() -> None:
    async with server_process() as server, Caller(server) as caller:
        for _ in range(200):
            await caller.inference.Generate(request(max_output_tokens=1))
        server.signal()
        assert await server.until_exit(SOON_S) == 0
        await server.until_logged("stopped")
    events = [line["event"] for line in server.log]
    assert events == ["listening", "ready", *["call"] * 200, "draining", "stopped"]


async def test_the_drain_limit_ends_what_is_left_for_others_to_resume() -> None:
    async with server_process(drain_limit=0.5) as server, Caller(server) as caller:
        stream = await caller.started(8000)
        server.signal()
        error = await refusal(rest_of(stream))
        assert (error.code(), error_info(error).reason) == (grpc.StatusCode.UNAVAILABLE, "DRAINING")
        assert error_info(error).metadata["started"] == "true"
        assert retry_hint_ms(error) is None
        assert await server.until_exit(SOON_S) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_second_signal_exits_at_once(number: signal.Signals) -> None:
    async with server_process() as server, Caller(server) as caller:
        await caller.started(8000)
        watch = await caller.watch()
        server.signal()
        await watch.read()
        server.signal(number)
        assert await server.until_exit(SOON_S) == 128 + number


async def test_a_signal_while_the_model_loads_ends_the_process_cleanly() -> None:
    async with server_process(until="listening", engine_options={"start_delay_s": 600}) as server:
        server.signal()
        assert await server.until_exit(SOON_S) == 0
