"""Health tells the truth: before the model is loaded, while it serves, when the engine dies or freezes, and after."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import grpc
import pytest
from grpc_health.v1 import health_pb2
from inferwire.v1 import operations_pb2
from inferwire_server.engines.scripted import Die, Plan, PlanBook, ScriptedEngine, ScriptedOptions

from tests.polling import until
from tests.serving import QUICK, Serving, error_info, refusal, request, rest_of, serving

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
SERVICE_UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
INFERENCE = "inferwire.v1.InferenceService"


class LoadingEngine(ScriptedEngine):
    """Is loaded when a test says so."""

    def __init__(self) -> None:
        super().__init__(QUICK)
        self.loaded = asyncio.Event()

    async def start(self) -> None:
        await self.loaded.wait()
        await super().start()


@asynccontextmanager
async def loading() -> AsyncIterator[tuple[Serving, Callable[[], Awaitable[None]]]]:
    """A server that listens while its model loads, and what lets the loading end."""
    engine = LoadingEngine()
    async with serving(engine=engine, start=False) as server:
        starting = asyncio.create_task(server.server.start())
        await until(lambda: server.server.port != 0)
        server.connect()

        async def finish() -> None:
            engine.loaded.set()
            await starting

        yield server, finish


async def status_of(server: Serving, service: str = "") -> int:
    status: int = (await server.health.Check(health_pb2.HealthCheckRequest(service=service))).status
    return status


@asynccontextmanager
async def watched(server: Serving, service: str = "") -> AsyncIterator[list[int]]:
    """Everything that a Watch shows while the body runs."""
    shown: list[int] = []
    watch = server.health.Watch(health_pb2.HealthCheckRequest(service=service))

    async def follow() -> None:
        async for response in watch:
            shown.append(response.status)  # noqa: PERF401 the body looks at it meanwhile

    following = asyncio.create_task(follow())
    await until(lambda: bool(shown))
    try:
        yield shown
    finally:
        following.cancel()
        await asyncio.wait([following])


async def server_status(server: Serving) -> operations_pb2.GetServerStatusResponse:
    return await server.operations.GetServerStatus(operations_pb2.GetServerStatusRequest())


@pytest.mark.case("H18")
async def test_health_follows_the_engine_through_loading_death_and_recovery() -> None:
    async with loading() as (server, finish):
        async with watched(server) as shown, watched(server, "readiness") as readiness:
            assert await status_of(server) == NOT_SERVING
            await finish()
            await until(lambda: shown == [NOT_SERVING, SERVING])
            server.engine.die("a test wants it")
            await until(lambda: shown == [NOT_SERVING, SERVING, NOT_SERVING])
            assert await status_of(server) == NOT_SERVING
            server.engine.recover()
            await until(lambda: shown == [NOT_SERVING, SERVING, NOT_SERVING, SERVING])
            assert await server.is_alive()
        assert readiness == shown == [NOT_SERVING, SERVING, NOT_SERVING, SERVING]


@pytest.mark.case("H18")
async def test_calls_on_a_dying_engine_end_unavailable_and_none_hangs() -> None:
    async with serving(ScriptedOptions(max_running=8, step_base_s=0.005)) as server:
        running = [server.inference.StreamGenerate(request(max_output_tokens=4000)) for _ in range(8)]
        await asyncio.gather(*[stream.read() for stream in running])
        waiting = [asyncio.create_task(refusal(server.inference.Generate(request()))) for _ in range(4)]
        await until(lambda: server.sample("inferwire_waiting_generations") == 4)
        server.engine.die("a test wants it")
        async with asyncio.timeout(20):
            errors = [await refusal(rest_of(stream)) for stream in running]
            errors += await asyncio.gather(*waiting)
        assert {error.code() for error in errors} == {grpc.StatusCode.UNAVAILABLE}
        assert {error_info(error).reason for error in errors} == {"ENGINE_DOWN"}
        assert [error_info(error).metadata["started"] for error in errors] == ["true"] * 8 + ["false"] * 4
        await until(lambda: server.is_quiet)


@pytest.mark.case("H18")
async def test_the_engine_restarts_by_itself_and_the_next_answer_is_right() -> None:
    plans = PlanBook((("die", Plan(mishap=Die(after=3))),))
    options = ScriptedOptions(step_base_s=0.002, recover_after_s=0.1, start_delay_s=0.1)
    async with serving(options, plans=plans) as server:
        before = await server.inference.Generate(request(sampling={"seed": 1}))
        await refusal(server.inference.Generate(request("die now")))
        await until(lambda: server.server.lifecycle.is_ready)
        after = await server.inference.Generate(request(sampling={"seed": 1}))
        assert after.outputs[0].text == before.outputs[0].text
        assert (await server_status(server)).engine_restarts == 1
        assert server.sample("inferwire_engine_restarts_total") == 1


async def test_startup_turns_once_and_liveness_never_does() -> None:
    async with loading() as (server, finish):
        assert [await status_of(server, name) for name in ("startup", "liveness")] == [NOT_SERVING, SERVING]
        await finish()
        server.engine.die("a test wants it")
        statuses = [await status_of(server, name) for name in ("startup", "liveness", "readiness", INFERENCE)]
        assert statuses == [SERVING, SERVING, NOT_SERVING, NOT_SERVING]


async def test_a_service_that_is_not_known_is_not_found_and_a_watch_of_it_says_so() -> None:
    async with serving() as server:
        error = await refusal(server.health.Check(health_pb2.HealthCheckRequest(service="nobody")))
        assert error.code() is grpc.StatusCode.NOT_FOUND
        async with watched(server, "nobody") as shown:
            assert shown == [SERVICE_UNKNOWN]


async def test_a_call_before_the_model_is_ready_is_told_to_come_back() -> None:
    async with loading() as (server, finish):
        error = await refusal(server.inference.Generate(request()))
        assert (error.code(), error_info(error).reason) == (grpc.StatusCode.UNAVAILABLE, "STARTING")
        assert (await server_status(server)).state == operations_pb2.SERVER_STATE_STARTING
        await finish()
        assert await server.is_alive()


@pytest.mark.case("H18")
async def test_an_idle_engine_that_froze_is_found_by_the_canary_and_its_return_too() -> None:
    async with serving(canary_interval=0.2, canary_timeout=0.3) as server, watched(server) as shown:
        server.engine.freeze()
        await until(lambda: shown == [SERVING, NOT_SERVING])
        assert "one-token generation" in (await server_status(server)).reason
        server.engine.thaw()
        await until(lambda: shown == [SERVING, NOT_SERVING, SERVING])
        assert (await server_status(server)).reason == ""
        assert server.sample("inferwire_canary_failures_total") >= 1


async def test_a_frozen_engine_with_work_is_found_too() -> None:
    async with serving(ScriptedOptions(max_running=1), canary_interval=0.2, canary_timeout=0.3) as server:
        stream = server.inference.StreamGenerate(request(max_output_tokens=4000))
        await stream.read()
        server.engine.freeze()
        await until(lambda: not server.server.health.is_ready)
        server.engine.thaw()
        await until(lambda: server.server.health.is_ready)
        stream.cancel()


async def test_the_canary_appears_in_no_counter_but_its_own() -> None:
    async with serving(canary_interval=0.1) as server:
        await until(lambda: server.sample("inferwire_canary_seconds_count") >= 5)
        assert server.outcomes() == {}
        assert server.sample("inferwire_prompt_tokens_total") == server.sample("inferwire_output_tokens_total") == 0
        assert server.sample("inferwire_time_to_first_token_seconds_count") == 0
        assert server.calls_under_way == 0
