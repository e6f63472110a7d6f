"""Rows 1, 2 and 14: processes are killed under calls of every kind."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from inferwire import BlockingResilientChannel, ResilientChannel
from inferwire.settings import FailoverPolicy
from inferwire.testing import RESET, Script

from tests.chaos.calls import Call, Tally, assert_whole, side_by_side, size, story, streamed, streamed_blocking
from tests.chaos.places import Place, config_of, places
from tests.client.regions_of_fakes import channel_to, fakes
from tests.polling import until

AT_ONCE = FailoverPolicy(return_after_s=0.0, slow_start_s=0.0)
"""So that a region that was restarted is in use again."""


def kill(region: Sequence[Place]) -> Callable[[], None]:
    def strike() -> None:
        for place in region:
            place.send(signal.SIGKILL)

    return strike


async def restart(region: Sequence[Place], channel: ResilientChannel) -> None:
    """Start what was killed again, and call until the client has found out."""
    await asyncio.gather(*(place.restart() for place in region))
    links = channel.fleet().links
    async with asyncio.timeout(60):
        while not all(link.state.is_serving and link.state.is_healthy for link in links):
            assert (await streamed(channel, story(0, tokens=1))).error is None


@pytest.mark.slow
@pytest.mark.timeout(1200)
async def test_killing_an_endpoint_or_a_region_loses_and_doubles_nothing(record_property: Any) -> None:
    at_once, rounds = size(30, 200), size(1, 5)
    async with (
        places([{}, {}], [{}, {}]) as (near, far),
        ResilientChannel(config_of([near, far], failover=AT_ONCE)) as channel,
    ):
        requests = [story(number) for number in range(at_once)]
        undisturbed = await _of_each_kind(channel, requests)
        tallies: dict[str, Tally] = {}
        for struck, name in ((near[:1], "an endpoint"), (near, "a region")):
            kinds: list[list[Call]] = [[], [], []]
            for number in range(rounds):
                disturbed = await _of_each_kind(channel, requests, strike=kill(struck))
                kinds = [one + other for one, other in zip(kinds, disturbed, strict=True)]
                if number < rounds - 1 or struck is not near:
                    await restart(struck, channel)
            for kind, calls, quiet in zip(KINDS, kinds, undisturbed, strict=True):
                tallies[f"{name} killed, {kind}"] = Tally(calls, quiet * rounds)
    for form, tally in tallies.items():
        record_property("figures", tally.figures("1", form=form))
        assert_whole(tally)
        assert tally.attempts <= 3.0
    assert any(call.attempts > 1 for call in tallies["a region killed, stream"].calls)


KINDS = ("stream", "unary", "stream without asyncio")


async def _of_each_kind(
    channel: ResilientChannel, requests: Sequence[Any], strike: Callable[[], None] | None = None
) -> list[list[Call]]:
    """Streams, as many unary calls, and a tenth as many blocking streams, all at once."""
    blocking = BlockingResilientChannel(channel.config)
    try:
        unary = asyncio.create_task(side_by_side(channel, requests, unary=True))
        threads = [asyncio.to_thread(streamed_blocking, blocking, each) for each in requests[: len(requests) // 10]]
        without_asyncio = asyncio.gather(*threads)
        streams = await side_by_side(channel, requests, strike=strike)
        return [streams, await unary, list(await without_asyncio)]
    finally:
        await asyncio.to_thread(blocking.close)


@pytest.mark.slow
@pytest.mark.parametrize("unary", [False, True], ids=["stream", "unary"])
@pytest.mark.timeout(240)
async def test_a_region_killed_before_any_first_token_loses_nothing(unary: bool, record_property: Any) -> None:
    number = size(20, 200)
    slow = {"prefill_tokens_per_s": 400.0, "prefill_chunk_tokens": 64}
    requests = [story(each, tokens=8, prompt="a rather long beginning of a story") for each in range(number)]
    async with places([slow], [{}]) as (near, far), ResilientChannel(config_of([near, far])) as channel:
        undisturbed = await side_by_side(channel, requests, unary=unary)
        calls = [Call() for _ in requests]
        running = asyncio.gather(
            side_by_side(channel, requests, unary=unary), asyncio.create_task(_kill_soon(near, channel))
        )
        calls = (await running)[0]
    tally = Tally(calls, undisturbed)
    record_property("figures", tally.figures("2", form="unary" if unary else "stream"))
    assert_whole(tally)
    assert tally.attempts <= 3.0


async def _kill_soon(region: Sequence[Place], channel: ResilientChannel) -> None:
    links = channel.fleet().links
    await until(lambda: links[0].state.outstanding > 0)
    await asyncio.sleep(0.1)
    kill(region)()


async def test_a_prompt_of_a_mebibyte_is_taken_elsewhere_too(record_property: Any) -> None:
    lost_early, lost_late = Script(mishap=RESET), Script(mishap=RESET, after_tokens=2)
    calls: list[Call] = []
    for loss in (lost_early, lost_late):
        async with fakes(loss, Script()) as (a, b), channel_to(a, b) as channel:
            request = story(0, model="fake", prompt="words " * 175_000)
            calls.append(await streamed(channel, request))
    tally = Tally(calls)
    record_property("figures", tally.figures("14"))
    assert_whole(tally)
    assert [call.attempts for call in calls] == [2, 2]
