"""Every request ends in exactly one outcome, gauges return to where they were, and no scrape ever sees nonsense."""

from __future__ import annotations

import asyncio
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from inferwire_server.engines.scripted import Fail, Plan, PlanBook, ScriptedOptions
from prometheus_client.parser import text_string_to_metric_families

from tests.polling import until
from tests.serving import Serving, refusal, request, serving

SLOTS, PLACES = 8, 20
OPTIONS = ScriptedOptions(step_base_s=0.005, max_running=SLOTS)
NEVER_NEGATIVE = (
    "inferwire_running_generations",
    "inferwire_waiting_generations",
    "inferwire_waiting_prompt_tokens",
    "inferwire_kv_cache_usage_ratio",
    "inferwire_batch_size",
)


@asynccontextmanager
async def scraped(server: Serving) -> AsyncIterator[list[dict[str, float]]]:
    """The gauges of the real page, taken every 50 ms while the body runs."""
    scrapes: list[dict[str, float]] = []
    url = f"http://127.0.0.1:{server.server.metrics_port}/metrics"

    def scrape() -> dict[str, float]:
        with urllib.request.urlopen(url, timeout=20) as page:
            families = text_string_to_metric_families(page.read().decode())
            return {s.name: s.value for family in families for s in family.samples if s.name in NEVER_NEGATIVE}

    async def follow() -> None:
        while True:
            scrapes.append(await asyncio.to_thread(scrape))
            await asyncio.sleep(0.05)

    following = asyncio.create_task(follow())
    try:
        yield scrapes
        seen = len(scrapes)
        await until(lambda: len(scrapes) >= seen + 2)
    finally:
        following.cancel()
        await asyncio.wait([following])


class Mix:
    """Calls of every fate against one server; each prompt is a little longer than the one before."""

    def __init__(self, server: Serving) -> None:
        self.server = server
        self.prefilled_tokens = 0
        self._calls = 0

    def message(self, output_tokens: int) -> Any:
        self._calls += 1
        return request("p" * (self._calls % 50 + 1), max_output_tokens=output_tokens)

    async def started(self, count: int, **call: Any) -> list[Any]:
        """Streams that the engine has taken."""
        streams: list[Any] = [self.server.inference.StreamGenerate(self.message(4000), **call) for _ in range(count)]
        for stream in streams:
            self.prefilled_tokens += (await stream.read()).started.prompt_tokens
        return streams

    async def cancelled_in_stream(self, streams: list[Any]) -> None:
        for stream in streams:
            stream.cancel()
        await until(lambda: self.server.engine.load().running == 0)

    async def queue_filled_and_overflowing(self) -> None:
        """20 that wait and then leave, 20 that find no place, around work that runs."""
        running = await self.started(SLOTS)
        waiting = [self.server.inference.StreamGenerate(self.message(4)) for _ in range(PLACES)]
        await until(lambda: self.server.sample("inferwire_waiting_generations") == PLACES)
        for _ in range(20):
            error = await refusal(self.server.inference.Generate(self.message(4)))
            assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        for call in waiting:
            call.cancel()
        await until(lambda: self.server.sample("inferwire_waiting_generations") == 0)
        await self.cancelled_in_stream(running)

    async def expired(self, count: int) -> None:
        for stream in await self.started(count, timeout=0.8):
            assert await stream.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        await until(lambda: self.server.engine.load().running == 0)

    async def invalid(self, count: int) -> None:
        for _ in range(count):
            error = await refusal(self.server.inference.Generate(self.message(0)))
            assert error.code() is grpc.StatusCode.INVALID_ARGUMENT

    async def whole(self, count: int) -> None:
        answers = [self.server.inference.Generate(self.message(8)) for _ in range(count)]
        self.prefilled_tokens += sum([(await answer).usage.prompt_tokens for answer in answers])


@pytest.mark.case("H19")
async def test_two_hundred_calls_of_every_fate_add_up_exactly() -> None:
    async with serving(OPTIONS, max_waiting=PLACES, metrics_enabled=True, metrics_port=0) as server:
        mix = Mix(server)
        async with scraped(server) as scrapes:
            await mix.queue_filled_and_overflowing()
            for _ in range(4):
                await mix.cancelled_in_stream(await mix.started(SLOTS))
            for count in (8, 8, 4):
                await mix.expired(count)
            await mix.invalid(20)
            for _ in range(4):
                await mix.whole(20)
            await until(lambda: server.is_quiet)
        expected = {"ok": 80, "cancelled": 60, "deadline": 20, "invalid_request": 20, "overloaded": 20}
        assert server.outcomes() == expected
        assert sum(server.outcomes().values()) == 200
        assert server.sample("inferwire_prompt_tokens_total") == mix.prefilled_tokens
        assert len(scrapes) >= 3
        assert all(value >= 0 for scrape in scrapes for value in scrape.values())
        assert set(scrapes[-1].values()) == {0.0}
        assert set(scrapes[-1]) == set(NEVER_NEGATIVE)


async def test_calls_are_counted_by_method_code_and_reason() -> None:
    plans = PlanBook((("boom", Plan(mishap=Fail(lambda: ValueError("no"), after=2))),))
    async with serving(plans=plans) as server:
        method = {
            "grpc_type": "unary",
            "grpc_service": "inferwire.v1.InferenceService",
            "grpc_method": "Generate",
        }
        await server.inference.Generate(request())
        await refusal(server.inference.Generate(request("boom")))
        await refusal(server.inference.Generate(request(model="nobody")))
        await until(lambda: server.calls_under_way == 0)
        for code in ("OK", "INTERNAL", "NOT_FOUND"):
            assert server.sample("grpc_server_handled_total", **method, grpc_code=code) == 1
        assert server.sample("inferwire_refusals_total", reason="MODEL_NOT_FOUND") == 1
        assert server.sample("inferwire_refusals_total", reason="INTERNAL") == 1
        assert server.outcomes() == {"ok": 1, "internal_error": 1, "model_not_found": 1}


async def test_tokens_of_every_output_are_counted_and_the_prompt_once() -> None:
    async with serving() as server:
        answer = await server.inference.Generate(request(output={"count": 3}))
        assert server.sample("inferwire_output_tokens_total") == answer.usage.output_tokens == 48
        assert server.sample("inferwire_prompt_tokens_total") == answer.usage.prompt_tokens
        labels = {"model": "scripted@1", "priority": "standard"}
        assert server.sample("inferwire_time_to_first_token_seconds_count", **labels) == 1
        assert server.sample("inferwire_inter_token_seconds_count") == 45
        assert server.sample("inferwire_prefill_seconds_count") == 1
        assert server.sample("inferwire_queue_seconds_count", **labels) == 1
