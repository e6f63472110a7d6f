"""Pings as often as the server publishes never end a quiet call or an idle connection."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest
from inferwire.v1 import inference_pb2, inference_pb2_grpc
from inferwire_server.engines.scripted import Plan, PlanBook, ScriptedOptions

from tests.serving import Serving, refusal, request, serving

SILENT = PlanBook((("silent", Plan(first_token_delay_s=5.0)), ("endless", Plan(first_token_delay_s=60.0))))
QUICK = ScriptedOptions(step_base_s=0.002)
SHORTEST_S = 1.0
"""gRPC's own clients never ping more often."""

pytestmark = pytest.mark.case("H04")


def pinging(server: Serving, interval_ms: int) -> grpc.aio.Channel:
    """A connection of its own that pings at an interval, with and without calls."""
    options: list[tuple[str, Any]] = [
        ("grpc.keepalive_time_ms", interval_ms),
        ("grpc.keepalive_timeout_ms", 20_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.use_local_subchannel_pool", 1),
    ]
    return grpc.aio.insecure_channel(server.address, options=options)


async def published_interval_ms(server: Serving) -> int:
    info = await server.inference.GetServerInfo(inference_pb2.GetServerInfoRequest())
    interval: int = info.min_ping_interval.ToMilliseconds()
    return interval


async def test_quiet_calls_and_an_idle_connection_outlive_many_pings() -> None:
    async with serving(QUICK, plans=SILENT, min_ping_interval=SHORTEST_S) as server:
        interval_ms = await published_interval_ms(server)
        assert interval_ms == 1000
        async with pinging(server, interval_ms) as idle, pinging(server, interval_ms) as busy:
            at_rest, quiet = (inference_pb2_grpc.InferenceServiceStub(channel) for channel in (idle, busy))
            await at_rest.Generate(request())
            stream = quiet.StreamGenerate(request("silent"))
            assert (await quiet.Generate(request("silent"))).usage.output_tokens == 16
            assert [event async for event in stream][-1].completed.usage.output_tokens == 16
            assert idle.get_state() is grpc.ChannelConnectivity.READY
            assert (await at_rest.Generate(request())).usage.output_tokens == 16


async def test_pings_far_faster_than_published_are_what_gets_a_client_disconnected() -> None:
    async with serving(QUICK, plans=SILENT, min_ping_interval=60.0) as server:
        async with pinging(server, 1000) as channel:
            error = await refusal(inference_pb2_grpc.InferenceServiceStub(channel).Generate(request("endless")))
        assert error.code() is grpc.StatusCode.UNAVAILABLE
        assert "ping" in str(error.details()).lower()


async def test_the_default_interval_is_published() -> None:
    async with serving() as server:
        assert await published_interval_ms(server) == 5000
        await asyncio.wait_for(server.is_alive(), 20)
