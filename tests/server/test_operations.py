"""What operators see and steer: load, generations, cancels, drains."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from inferwire.v1 import generation_pb2, operations_pb2
from inferwire_server.engines.scripted import ScriptedOptions

from tests.polling import until
from tests.serving import Serving, error_info, refusal, request, rest_of, retry_hint_ms, serving

STEADY = ScriptedOptions(step_base_s=0.005, max_running=4)


async def begun(server: Serving, number: int, tenant: str = "a", **fields: Any) -> Any:
    """A stream of a tenant, with an id of its own, that the server knows."""
    known = server.server.sessions.num_live
    stream: Any = server.inference.StreamGenerate(
        request(request_id=f"job-{number}", max_output_tokens=4000, **fields),
        metadata=(("x-inferwire-tenant", tenant),),
    )
    await until(lambda: server.server.sessions.num_live > known)
    return stream


async def page(server: Serving, size: int = 0, token: str = "") -> operations_pb2.ListGenerationsResponse:
    return await server.operations.ListGenerations(
        operations_pb2.ListGenerationsRequest(page_size=size, page_token=token)
    )


async def status(server: Serving) -> operations_pb2.GetServerStatusResponse:
    return await server.operations.GetServerStatus(operations_pb2.GetServerStatusRequest())


def cancel(server: Serving, request_id: str, tenant: str) -> Any:
    return server.operations.CancelGeneration(
        operations_pb2.CancelGenerationRequest(request_id=request_id, tenant=tenant)
    )


async def test_the_status_says_what_runs_and_what_waits_and_for_whom() -> None:
    async with serving(STEADY) as server:
        streams = [await begun(server, number, tenant) for number, tenant in enumerate("aaabb")]
        for stream in streams[:4]:
            assert (await stream.read()).HasField("started")
        await until(lambda: server.sample("inferwire_output_tokens_total") > 20)
        said = await status(server)
        assert (said.state, said.engine_state) == (
            operations_pb2.SERVER_STATE_SERVING,
            operations_pb2.ENGINE_STATE_READY,
        )
        assert (said.load.running, said.load.waiting, said.load.batch_size) == (4, 1, 4)
        assert said.load.output_tokens_per_second > 0
        assert said.load.prompt_tokens_per_second > 0
        assert 0 < said.load.kv_utilization <= 1
        tenants = {each.tenant: (each.running, each.waiting) for each in said.load.tenants}
        assert tenants == {"a": (3, 0), "b": (1, 1)}
        assert (said.reason, said.insecure, said.engine_restarts) == ("", False, 0)
        assert said.started_at.ToSeconds() > 1_700_000_000
        for stream in streams:
            stream.cancel()


async def test_load_is_reported_again_and_again_and_returns_to_nothing() -> None:
    async with serving(STEADY) as server:
        stream = await begun(server, 1)
        watch: Any = server.operations.WatchLoad(operations_pb2.WatchLoadRequest(interval=Duration(nanos=10**8)))
        assert (await watch.read()).load.running == 1
        stream.cancel()
        async with asyncio.timeout(20):
            while (await watch.read()).load.running:
                pass
        watch.cancel()
        await until(lambda: server.is_quiet)


@pytest.mark.parametrize("seconds", [0.05, 61, 0, -1])
async def test_a_watch_interval_out_of_bounds_is_refused(seconds: float) -> None:
    async with serving() as server:
        interval = Duration()
        interval.FromMilliseconds(round(seconds * 1000))
        error = await refusal(server.operations.WatchLoad(operations_pb2.WatchLoadRequest(interval=interval)))
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert error_info(error).metadata["field"] == "interval"


async def test_generations_are_listed_page_by_page_oldest_first() -> None:
    async with serving(STEADY) as server:
        priorities = ["PRIORITY_INTERACTIVE", "PRIORITY_BATCH", "PRIORITY_STANDARD"]
        streams = [
            await begun(server, number, "ab"[number % 2], scheduling={"priority": priorities[number % 3]})
            for number in range(7)
        ]
        seen: list[operations_pb2.GenerationSummary] = []
        token = ""
        while True:
            answer = await page(server, 3, token)
            seen += answer.generations
            token = answer.next_page_token
            if not token:
                break
        assert [each.request_id for each in seen] == [f"job-{number}" for number in range(7)]
        assert [each.tenant for each in seen] == list("abababa")
        assert {each.model for each in seen} == {"scripted@1"}
        assert seen[1].priority == generation_pb2.PRIORITY_BATCH
        assert list((await page(server)).generations) == seen
        for stream in streams:
            stream.cancel()


async def test_ends_and_arrivals_between_pages_skip_and_repeat_nothing() -> None:
    async with serving(STEADY) as server:
        streams = [await begun(server, number) for number in range(6)]
        first = await page(server, 2)
        streams[1].cancel()
        streams[2].cancel()
        await until(lambda: server.outcomes().get("cancelled") == 2)
        streams.append(await begun(server, 6))
        second = await page(server, 10, first.next_page_token)
        assert [each.request_id for each in second.generations] == ["job-3", "job-4", "job-5", "job-6"]
        assert second.next_page_token == ""
        for stream in streams:
            stream.cancel()


@pytest.mark.parametrize(("size", "token", "field"), [(1001, "", "page_size"), (1, "x", "page_token")])
async def test_a_page_that_cannot_be_is_refused_by_its_field(size: int, token: str, field: str) -> None:
    async with serving() as server:
        error = await refusal(page(server, size, token))
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert error_info(error).metadata["field"] == field


async def test_an_operator_ends_a_running_and_a_waiting_generation() -> None:
    async with serving(ScriptedOptions(step_base_s=0.005, max_running=1)) as server:
        running, waiting = [await begun(server, number) for number in range(2)]
        for number, stream, started in ((1, waiting, "false"), (0, running, "true")):
            await cancel(server, f"job-{number}", "a")
            error = await refusal(rest_of(stream))
            assert (error.code(), error_info(error).reason) == (grpc.StatusCode.ABORTED, "CANCELLED_BY_OPERATOR")
            assert (error_info(error).metadata["started"], retry_hint_ms(error)) == (started, None)
        await until(lambda: server.is_quiet)
        assert server.outcomes() == {"cancelled_by_operator": 2}


async def test_only_what_lives_here_under_this_tenant_can_be_ended() -> None:
    async with serving(STEADY) as server:
        stream = await begun(server, 1, "a")
        for request_id, tenant in (("job-1", "b"), ("job-2", "a")):
            error = await refusal(cancel(server, request_id, tenant))
            assert (error.code(), error_info(error).reason) == (grpc.StatusCode.NOT_FOUND, "GENERATION_NOT_FOUND")
        for request_id, tenant, field in (("", "a", "request_id"), ("job-1", "", "tenant")):
            error = await refusal(cancel(server, request_id, tenant))
            assert error_info(error).metadata["field"] == field
        assert (await stream.read()).HasField("started")
        stream.cancel()


async def test_a_generation_without_an_id_gets_one_that_can_be_used() -> None:
    async with serving(STEADY) as server:
        stream: Any = server.inference.StreamGenerate(request(max_output_tokens=4000))
        request_id = (await stream.read()).started.request_id
        await cancel(server, request_id, "anonymous")
        assert error_info(await refusal(rest_of(stream))).reason == "CANCELLED_BY_OPERATOR"


async def test_a_drain_by_call_lets_running_work_end_and_stops_the_server() -> None:
    async with serving(STEADY) as server:
        stream: Any = server.inference.StreamGenerate(request(max_output_tokens=100))
        await stream.read()
        answer = await server.operations.Drain(operations_pb2.DrainRequest())
        assert answer.running == 1
        assert (await status(server)).state == operations_pb2.SERVER_STATE_DRAINING
        assert (await status(server)).reason == "draining"
        assert error_info(await refusal(server.inference.Generate(request()))).reason == "DRAINING"
        assert [event async for event in rest_of(stream)][-1].completed.usage.output_tokens == 100
        await asyncio.wait_for(server.server.until_stopped(), 20)


async def test_a_second_drain_only_shortens_the_limit() -> None:
    async with serving(STEADY, drain_limit=300.0) as server:
        stream: Any = server.inference.StreamGenerate(request(max_output_tokens=8000))
        await stream.read()
        for seconds in (250, 600):
            await server.operations.Drain(operations_pb2.DrainRequest(limit=Duration(seconds=seconds)))
        await server.operations.Drain(operations_pb2.DrainRequest(limit=Duration(nanos=10**8)))
        error = await refusal(rest_of(stream))
        assert (error.code(), error_info(error).reason) == (grpc.StatusCode.UNAVAILABLE, "DRAINING")
        await asyncio.wait_for(server.server.until_stopped(), 20)


async def test_a_drain_limit_that_cannot_be_is_refused() -> None:
    async with serving() as server:
        error = await refusal(server.operations.Drain(operations_pb2.DrainRequest(limit=Duration(seconds=-1))))
        assert error_info(error).metadata["field"] == "limit"
        assert await server.is_alive()
