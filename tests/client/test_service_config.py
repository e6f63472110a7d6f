"""`clients/service_config.json`, for clients that have gRPC and nothing of ours, as a plain Python channel reads it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest
from inferwire.testing import RESET, FakeServer, Refusal, Script
from inferwire_server.engines.scripted import ScriptedOptions

from tests.client.regions_of_fakes import fakes, request, stub_of, text_of
from tests.polling import until
from tests.serving import Serving, refusal, serving
from tests.serving import request as scripted_request

CONFIG = (Path(__file__).parents[2] / "clients" / "service_config.json").read_text()
DOWN = Refusal("ENGINE_DOWN", hint_s=0.01)
FULL = Refusal("OVERLOADED", hint_s=0.01)
TEXT = "Hello, world!"


@asynccontextmanager
async def channel_to(*servers: Serving | FakeServer) -> AsyncIterator[grpc.aio.Channel]:
    target = "ipv4:" + ",".join(server.address for server in servers)
    async with grpc.aio.insecure_channel(target, options=[("grpc.service_config", CONFIG)]) as channel:
        yield channel


@pytest.mark.parametrize("method", ["Generate", "StreamGenerate"])
async def test_a_call_refused_before_its_first_message_is_tried_again(method: str) -> None:
    async with fakes((Script(mishap=DOWN), Script(mishap=DOWN), Script())) as [server], channel_to(server) as channel:
        assert await text_of(getattr(stub_of(channel), method)(request())) == TEXT

    assert [call.metadata.get("grpc-previous-rpc-attempts") for call in server.calls] == [None, "1", "2"]


async def test_a_stream_that_breaks_after_its_first_message_is_not() -> None:
    broken = Script(mishap=RESET, after_tokens=2)
    async with fakes((broken, Script())) as [server], channel_to(server) as channel:
        error = await refusal(stub_of(channel).StreamGenerate(request()))

    assert (error.code(), len(server.calls)) == (grpc.StatusCode.UNAVAILABLE, 1)


async def test_a_server_without_room_is_not_asked_again_by_a_client_that_cannot_go_elsewhere() -> None:
    async with fakes((Script(mishap=FULL), Script())) as [server], channel_to(server) as channel:
        error = await refusal(stub_of(channel).Generate(request()))

    assert (error.code(), len(server.calls)) == (grpc.StatusCode.RESOURCE_EXHAUSTED, 1)


async def test_a_call_is_sent_four_times_at_most() -> None:
    async with fakes(Script(mishap=DOWN)) as [server], channel_to(server) as channel:
        await refusal(stub_of(channel).Generate(request()))

    assert len(server.calls) == 4


async def test_a_server_that_says_not_serving_gets_no_calls() -> None:
    async with fakes(Script(), Script()) as (a, b), channel_to(a, b) as channel:
        a.say_serving(False)
        channel.get_state(try_to_connect=True)
        await until(lambda: a.connections == b.connections == 1)
        for _ in range(10):
            assert await text_of(stub_of(channel).Generate(request())) == TEXT

    assert (len(a.calls), len(b.calls)) == (0, 10)


@pytest.mark.slow
@pytest.mark.timeout(120)
async def test_a_server_that_reports_more_load_gets_less() -> None:
    options = ScriptedOptions(step_base_s=0.005, max_running=20)
    async with serving(options) as busy, serving(options) as idle, channel_to(busy, idle) as channel:
        long = [busy.inference.StreamGenerate(scripted_request(max_output_tokens=8000)) for _ in range(18)]
        await until(lambda: busy.engine.load().running == 18)
        for _ in range(40):
            before = ended(busy), ended(idle)
            for _ in range(20):
                await stub_of(channel).Generate(scripted_request(max_output_tokens=1))
            counted = ended(busy) - before[0], ended(idle) - before[1]
            if counted[0] <= 6:
                break
        for call in long:
            call.cancel()

    assert sum(counted) == 20
    assert counted[0] <= 6


def ended(server: Serving) -> int:
    return server.outcomes().get("ok", 0)
