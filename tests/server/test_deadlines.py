"""The caller's deadline is a fact of scheduling: it stops work, and work that cannot be of use is not begun."""

from __future__ import annotations

from typing import Any

import grpc
import pytest
from inferwire_server.engines.scripted import ScriptedOptions

from tests.polling import until
from tests.serving import Serving, error_info, refusal, request, retry_hint_ms, serving

SLOW_STEPS = ScriptedOptions(step_base_s=0.02, max_running=2, max_context_tokens=512, kv_blocks=64)


def calls(server: Serving) -> tuple[Any, Any]:
    return server.inference.Generate, server.inference.StreamGenerate


@pytest.mark.case("H02")
@pytest.mark.parametrize("kind", [0, 1], ids=["unary", "stream"])
async def test_the_deadline_ends_a_running_generation_by_its_own_name(kind: int) -> None:
    async with serving(SLOW_STEPS) as server:
        error = await refusal(calls(server)[kind](request(max_output_tokens=400), timeout=0.5))
        assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        await until(lambda: server.is_quiet)
        assert server.outcomes() == {"deadline": 1}
        assert server.sample("inferwire_output_tokens_total") <= 40
        assert server.engine.load().kv_blocks_used == 0


@pytest.mark.case("H02")
@pytest.mark.parametrize("kind", [0, 1], ids=["unary", "stream"])
async def test_a_request_that_comes_with_less_than_ten_milliseconds_is_never_prefilled(kind: int) -> None:
    async with serving(SLOW_STEPS) as server:
        error = await refusal(calls(server)[kind](request(), timeout=0.008))
        assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        await until(lambda: server.calls_under_way == 0)
        assert server.sample("inferwire_prompt_tokens_total") == 0
        assert server.outcomes().keys() <= {"deadline"}


async def test_expired_while_waiting_never_reaches_the_engine() -> None:
    async with serving(ScriptedOptions(max_running=1)) as server:
        running = server.inference.StreamGenerate(request(max_output_tokens=4000))
        started: Any = await running.read()
        error = await refusal(server.inference.Generate(request(), timeout=0.3))
        assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        await until(lambda: server.sample("inferwire_waiting_generations") == 0)
        assert server.sample("inferwire_prompt_tokens_total") == started.started.prompt_tokens
        assert server.outcomes() == {"deadline": 1}
        running.cancel()


async def test_a_first_token_that_cannot_come_in_time_is_refused_at_once_without_a_hint() -> None:
    async with serving(ScriptedOptions(step_base_s=0.005, max_running=1)) as server:
        for seed in range(10):
            await server.inference.Generate(request(max_output_tokens=40, sampling={"seed": seed}))
        running = server.inference.StreamGenerate(request(max_output_tokens=4000))
        await running.read()
        await running.read()
        waiting = [server.inference.StreamGenerate(request(max_output_tokens=40)) for _ in range(20)]
        await until(lambda: server.sample("inferwire_waiting_generations") == 20)
        error = await refusal(server.inference.Generate(request(scheduling={"first_token_target": {"nanos": 10**7}})))
        assert (error.code(), error_info(error).reason) == (grpc.StatusCode.DEADLINE_EXCEEDED, "WOULD_EXCEED")
        assert retry_hint_ms(error) is None
        for stream in (running, *waiting):
            stream.cancel()


async def test_the_longest_queue_time_ends_the_wait_with_a_hint() -> None:
    async with serving(ScriptedOptions(max_running=1), max_queue_time=0.2) as server:
        running = server.inference.StreamGenerate(request(max_output_tokens=4000))
        await running.read()
        for scheduling in ({}, {"max_queue_time": {"nanos": 10**8}}):
            error = await refusal(server.inference.StreamGenerate(request(scheduling=scheduling)))
            assert (error.code(), error_info(error).reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "OVERLOADED")
            assert retry_hint_ms(error) is not None
        assert server.sample("inferwire_waiting_generations") == 0
        running.cancel()
