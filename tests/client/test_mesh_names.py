"""A name behind which something else balances, a mesh or a proxy, is one endpoint; our balancing keeps out of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from inferwire import ClientConfig, Region, ResilientChannel
from inferwire.policy.breaker import BreakerState
from inferwire.regions import Regions
from inferwire.testing import PROXY_RESET, FakeServer, Script

from tests.client.policy.endpoints import STEADY
from tests.client.regions_of_fakes import Waits, fakes, request, stub_of, text_of
from tests.polling import until

TEXT = "Hello, world!"
LOST_AT_ONCE = Script(mishap=PROXY_RESET)
LOST_IN_MID_STREAM = Script(mishap=PROXY_RESET, after_tokens=2)


def regions_of(*endpoints: str, mesh: bool = False) -> Regions:
    return Regions(ClientConfig(regions=(Region(name="eu", endpoints=endpoints, mesh=mesh),)))


@asynccontextmanager
async def mesh_of(server: FakeServer, *others: FakeServer, waits: Waits) -> AsyncIterator[ResilientChannel]:
    """A region for each server, whose address is taken for the name of many."""
    regions = tuple(
        Region(name=f"r{priority}", endpoints=(one.address,), priority=priority, mesh=True)
        for priority, one in enumerate((server, *others))
    )
    config = ClientConfig(regions=regions, breaker=STEADY)
    async with ResilientChannel(config, open_fleet=waits.fleet()) as channel:
        yield channel


@pytest.mark.parametrize("name", ["xds:///llm", "xds:///llm.svc:50051", "xds://authority/llm"])
def test_an_xds_name_is_one_endpoint_that_stands_for_many(name: str) -> None:
    regions = regions_of(name)

    assert not regions.unresolved()
    assert [(one.target, one.stands_for_many) for one in regions.endpoints] == [(name, True)]


@pytest.mark.parametrize("name", ["infer.mesh.svc:50051", "dns:///infer.mesh.svc:50051", "127.0.0.1:15001"])
def test_so_is_any_name_of_a_region_that_is_a_mesh(name: str) -> None:
    regions = regions_of(name, mesh=True)

    assert not regions.unresolved()
    assert [(one.target, one.stands_for_many) for one in regions.endpoints] == [(name, True)]
    assert not any(one.stands_for_many for one in regions_of(name).endpoints)


@pytest.mark.parametrize("method", ["Generate", "StreamGenerate"])
async def test_a_call_lost_behind_the_name_goes_to_the_name_again_at_once(method: str) -> None:
    waits = Waits()
    async with fakes((LOST_AT_ONCE, Script()), Script()) as (near, far), mesh_of(near, far, waits=waits) as channel:
        text = await text_of(getattr(stub_of(channel), method)(request()))

    assert (text, len(near.calls), len(far.calls), waits.slept) == (TEXT, 2, 0, [])


async def test_a_stream_lost_behind_the_name_goes_on_there() -> None:
    waits = Waits()
    async with fakes((LOST_IN_MID_STREAM, Script())) as [server], mesh_of(server, waits=waits) as channel:
        text = await text_of(stub_of(channel).StreamGenerate(request()))

    assert (text, waits.slept) == (TEXT, [])
    assert len(server.calls[1].request.resume.outputs[0].token_ids) == 2


async def test_after_two_losses_behind_one_name_the_next_region_is_tried() -> None:
    waits = Waits()
    async with fakes(LOST_AT_ONCE, Script()) as (near, far), mesh_of(near, far, waits=waits) as channel:
        text = await text_of(stub_of(channel).Generate(request()))

    assert (text, len(near.calls), len(far.calls)) == (TEXT, 2, 1)


async def test_what_one_of_many_servers_says_of_its_health_counts_for_nothing() -> None:
    waits = Waits()
    async with fakes(Script()) as [server], mesh_of(server, waits=waits) as channel:
        server.say_serving(False)
        await asyncio.wait_for(channel.channel_ready(), 20)
        text = await text_of(stub_of(channel).Generate(request()))

    assert (text, server.connections) == (TEXT, 0)


async def test_calls_that_are_lost_together_are_one_loss_to_the_breaker_of_the_name() -> None:
    waits = Waits()
    stalled = Script(mishap=PROXY_RESET, after_tokens=0, first_token_delay_s=0.2)
    async with fakes((*[stalled] * 8, Script())) as [server], mesh_of(server, waits=waits) as channel:
        calls = [asyncio.create_task(text_of(stub_of(channel).StreamGenerate(request()))) for _ in range(8)]
        await until(lambda: len(server.calls) >= 8)
        texts = await asyncio.gather(*calls)
        [link] = channel.fleet().links

    assert texts == [TEXT] * 8
    assert link.state.breaker.state is BreakerState.CLOSED


async def test_calls_that_fail_one_after_the_other_open_it() -> None:
    waits = Waits()
    async with fakes(LOST_AT_ONCE, Script()) as (near, far), mesh_of(near, far, waits=waits) as channel:
        for _ in range(STEADY.consecutive_failures):
            waits.now += 1.0
            await text_of(stub_of(channel).Generate(request()))
        [link, _] = channel.fleet().links

    assert link.state.breaker.state is BreakerState.OPEN
