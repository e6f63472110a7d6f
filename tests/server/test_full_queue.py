"""A bounded queue that is exact: who waits, who is refused, and what the gauges say at once."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest
from inferwire_server.engines.scripted import ScriptedOptions

from tests.polling import until
from tests.serving import Serving, error_info, refusal, request, rest_of, retry_hint_ms, serving

ONE_AT_A_TIME = ScriptedOptions(step_base_s=0.01, max_running=1)


def waiting(server: Serving) -> int:
    return int(server.sample("inferwire_waiting_generations"))


async def occupied(server: Serving) -> Any:
    """A long stream that has taken the only slot."""
    stream = server.inference.StreamGenerate(request(max_output_tokens=4000))
    await stream.read()
    return stream


async def assert_overloaded(call: Any) -> None:
    error = await refusal(call)
    assert (error.code(), error_info(error).reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "OVERLOADED")
    assert retry_hint_ms(error) is not None
    assert "retry-after" in dict(error.trailing_metadata() or ())


@pytest.mark.case("H16")
async def test_the_fourth_is_refused_and_the_second_expires_without_ever_being_prefilled() -> None:
    async with serving(ONE_AT_A_TIME, max_waiting=2) as server:
        first = await occupied(server)
        second = asyncio.create_task(refusal(server.inference.Generate(request("second"), timeout=1.0)))
        await until(lambda: waiting(server) == 1)
        third = server.inference.StreamGenerate(request("third"))
        await until(lambda: waiting(server) == 2)
        await assert_overloaded(server.inference.Generate(request("fourth")))
        assert (await second).code() is grpc.StatusCode.DEADLINE_EXCEEDED
        await until(lambda: waiting(server) == 1)
        assert server.sample("inferwire_prompt_tokens_total") == len("tell a story") + 1
        first.cancel()
        assert [event async for event in rest_of(third)][-1].completed.usage.output_tokens == 16
        assert server.outcomes() == {"overloaded": 1, "deadline": 1, "cancelled": 1, "ok": 1}


@pytest.mark.case("H16")
@pytest.mark.parametrize("spacing_ms", [1, 2, 5])
@pytest.mark.parametrize("repetition", range(3))
async def test_bursts_leave_exactly_as_many_waiting_as_may_wait(spacing_ms: int, repetition: int) -> None:
    async with serving(ONE_AT_A_TIME, max_waiting=2) as server:
        first = await occupied(server)
        burst = []
        for _ in range(10):
            burst.append(server.inference.StreamGenerate(request()))
            await asyncio.sleep(spacing_ms / 1000)
        await until(lambda: server.outcomes().get("overloaded") == 8)
        assert waiting(server) == 2
        refused = [call for call in burst if call.done()]
        await until(lambda: sum(call.done() for call in burst) == 8)
        assert len(refused) <= 8
        first.cancel()
        whole = [call for call in burst if not call.done()]
        for call in whole:
            assert [event async for event in rest_of(call)][-1].WhichOneof("event") == "completed"
        assert server.outcomes() == {"overloaded": 8, "cancelled": 1, "ok": 2}


@pytest.mark.case("H16")
async def test_the_waiting_gauge_falls_at_once_when_a_waiting_caller_leaves() -> None:
    async with serving(ONE_AT_A_TIME, max_waiting=2) as server:
        first = await occupied(server)
        leaving = [server.inference.StreamGenerate(request()) for _ in range(2)]
        await until(lambda: waiting(server) == 2)
        for left, call in enumerate(leaving, 1):
            call.cancel()
            await until(lambda left=left: server.outcomes().get("cancelled") == left)  # type: ignore[misc]
            assert waiting(server) == 2 - left
        assert server.sample("inferwire_waiting_prompt_tokens") == 0
        assert server.engine.load().running == 1
        first.cancel()


async def test_a_place_in_the_queue_goes_to_the_next_caller_as_soon_as_it_is_free() -> None:
    async with serving(ONE_AT_A_TIME, max_waiting=1) as server:
        first = await occupied(server)
        second = server.inference.StreamGenerate(request())
        await until(lambda: waiting(server) == 1)
        await assert_overloaded(server.inference.StreamGenerate(request()))
        second.cancel()
        await until(lambda: waiting(server) == 0)
        third = server.inference.StreamGenerate(request())
        await until(lambda: waiting(server) == 1)
        first.cancel()
        assert [event async for event in rest_of(third)][-1].WhichOneof("event") == "completed"


async def test_a_request_that_could_never_run_is_the_caller_s_fault_even_when_idle() -> None:
    async with serving(ScriptedOptions(kv_blocks=4, max_context_tokens=512)) as server:
        error = await refusal(server.inference.Generate(request(max_output_tokens=100)))
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert error_info(error).metadata["field"] == "max_output_tokens"
        assert error_info(error).metadata["limit"] == "64"
