"""Servers and engines that hang while their connections live: calls go elsewhere, and nobody waits for a deadline."""

from __future__ import annotations

import asyncio

import pytest
from inferwire import ClientConfig, Region, ResilientChannel
from inferwire.errors import LocalReason, Unavailable
from inferwire.settings import ResumePolicy, StallPolicy
from inferwire.testing import FakeServer, Script, blocking_fake_server, fake_server

from tests.client.regions_of_fakes import channel_to, failure, fakes, request, stub_of, text_of
from tests.polling import until

TEXT = "Hello, world!"
SOON = StallPolicy(
    progress_interval_s=0.1, first_token_s=0.7, prefill_s=0.7, between_tokens_s=0.7, decode_s=0.7, unary_s=0.3
)
HANGS_S = 1.5


def config_of(*servers: FakeServer) -> ClientConfig:
    regions = tuple(
        Region(name=f"r{number}", endpoints=(server.address,), priority=number) for number, server in enumerate(servers)
    )
    return ClientConfig(regions=regions, stall=SOON)


@pytest.mark.parametrize("method", ["Generate", "StreamGenerate"])
async def test_a_server_whose_loop_hangs_is_left_although_it_answers_pings(method: str) -> None:
    with blocking_fake_server() as hung:
        async with fake_server() as well, ResilientChannel(config_of(hung, well)) as channel:
            stub = stub_of(channel)
            assert await text_of(getattr(stub, method)(request())) == TEXT
            hung.hang(HANGS_S)
            call = getattr(stub, method)(request(), timeout=60)
            text = await text_of(call)
            trailers = dict(await call.trailing_metadata())

            assert (text, trailers["x-inferwire-attempts"], len(well.calls)) == (TEXT, "2", 1)
            assert trailers["x-inferwire-served-by"] == f"r1/{well.address}"


async def test_a_reply_that_takes_long_is_waited_for_while_the_server_lives() -> None:
    async with fakes(Script(first_token_delay_s=1.0), Script()) as (a, b), channel_to(a, b, stall=SOON) as channel:
        text = await text_of(stub_of(channel).Generate(request()))

    assert (text, len(a.calls), len(b.calls)) == (TEXT, 1, 0)


async def test_an_engine_that_hangs_before_the_first_token_is_left_although_the_server_sends_progress() -> None:
    hangs = Script(first_token_delay_s=60.0)
    async with fakes(hangs, Script()) as (a, b), channel_to(a, b, stall=SOON) as channel:
        text = await text_of(stub_of(channel).StreamGenerate(request()))
        await a.until(lambda: a.calls[0].ending == "cancelled")

    assert (text, len(a.calls), len(b.calls)) == (TEXT, 1, 1)


async def test_a_unary_call_that_nobody_else_can_take_says_why() -> None:
    with blocking_fake_server() as hung:
        once_more = config_of(hung).with_changes(resume=ResumePolicy(max_resumes=1))
        async with ResilientChannel(once_more) as channel:
            await text_of(stub_of(channel).Generate(request()))
            hung.hang(HANGS_S)
            error = (await failure(stub_of(channel).Generate(request(), timeout=20.0))).error

    assert isinstance(error, Unavailable)
    assert {attempt.reason for attempt in error.attempts} == {LocalReason.STALLED}


async def test_a_call_that_is_cancelled_while_its_server_is_asked_leaves_nothing_behind() -> None:
    with blocking_fake_server() as hung:
        async with ResilientChannel(config_of(hung)) as channel:
            await text_of(stub_of(channel).Generate(request()))
            hung.hang(1.0)
            call = stub_of(channel).Generate(request())
            running = asyncio.ensure_future(text_of(call))
            await until(lambda: any(task.get_name() == "sign of life" for task in asyncio.all_tasks()))
            running.cancel()
            await asyncio.wait([running])
        left = {task.get_name() for task in asyncio.all_tasks()} & {"sign of life", "reply watch"}

    assert left == set()
