"""Rows 3, 4 and 17: servers and ways to them that fall silent."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from inferwire import ClientConfig, Region, ResilientChannel
from inferwire.settings import FailoverPolicy, KeepalivePolicy, StallPolicy
from inferwire.testing import Script

from tests.chaos.calls import FULL, Call, Tally, assert_whole, side_by_side, size, story, streamed
from tests.chaos.places import config_of, places
from tests.chaos.tcp_proxy import tcp_proxy
from tests.client.regions_of_fakes import fakes
from tests.polling import until

STALL_S = 1.0
SOON = StallPolicy(
    progress_interval_s=0.2, first_token_s=2.0, between_tokens_s=STALL_S, decode_s=2.0, prefill_s=5.0, unary_s=0.5
)
ATTENTIVE = KeepalivePolicy(time_s=1.0, timeout_s=1.0, ping_timeout_s=1.0)
SLOWLY = Script(tokens=[f"word {number} " for number in range(40)], token_delay_s=0.02)


def two(near: str, far: str, **changes: Any) -> ClientConfig:
    regions = (Region(name="near", endpoints=(near,)), Region(name="far", endpoints=(far,), priority=1))
    return ClientConfig(regions=regions, stall=SOON, **changes)


@pytest.mark.slow
@pytest.mark.timeout(240)
async def test_a_process_that_is_frozen_and_thawed_doubles_nothing(record_property: Any) -> None:
    number = size(30, 200)
    async with (
        places([{}], [{}]) as (near, far),
        ResilientChannel(config_of([near, far], stall=SOON, keepalive=ATTENTIVE)) as channel,
    ):
        requests = [story(each) for each in range(number)]
        quiet = {unary: await side_by_side(channel, requests, unary=unary) for unary in (False, True)}
        tallies: dict[bool, Tally] = {}
        for unary in (False, True):
            running = asyncio.create_task(
                side_by_side(channel, requests, unary=unary, strike=lambda: near[0].send(signal.SIGSTOP))
            )
            asyncio.get_running_loop().call_later(2.5, near[0].send, signal.SIGCONT)
            tallies[unary] = Tally(await running, quiet[unary])
            await until(lambda: bool(channel.fleet().links[0].state.is_serving), within_s=60)
        near[0].send(signal.SIGSTOP)
        began = time.monotonic()
        await until(lambda: channel.fleet().links[0].state.is_serving is None, within_s=30)
        noticed_s = time.monotonic() - began
    for unary, tally in tallies.items():
        form = "unary" if unary else "stream"
        record_property("figures", tally.figures("3", form=form, stall_ms=1000 * STALL_S))
        assert_whole(tally)
        assert tally.attempts <= 3.0
    record_property("figures", {"row": "3", "form": "idle connection", "noticed_s": round(noticed_s, 2)})


@pytest.mark.slow
async def test_a_black_hole_on_the_way_to_a_region_is_left_and_found_healed(record_property: Any) -> None:
    number = size(20, 200)
    at_once = FailoverPolicy(return_after_s=0.0, slow_start_s=0.0)
    async with (
        fakes(SLOWLY, SLOWLY) as (a, b),
        tcp_proxy(a.address) as way,
        ResilientChannel(two(way.address, b.address, keepalive=ATTENTIVE, failover=at_once)) as channel,
    ):
        requests = [story(each, model="fake") for each in range(number)]
        undisturbed = await side_by_side(channel, requests)
        tally = Tally(await side_by_side(channel, requests, strike=way.hold), undisturbed)
        way.heal()
        way.reset()
        fleet = channel.fleet()
        await until(lambda: fleet.links[0].state.is_serving is True, within_s=30)
        before = len(a.calls)
        async with asyncio.timeout(30):
            while len(a.calls) == before:
                assert (await streamed(channel, requests[0])).error is None
    record_property("figures", tally.figures("4", form="a proxy that holds", stall_ms=1000 * STALL_S))
    assert_whole(tally)
    assert tally.attempts <= 3.0


@pytest.mark.parametrize("mishap", ["reset", "half_close", "cut"])
async def test_ways_that_break_are_replaced(mishap: str, record_property: Any) -> None:
    number = size(10, 200)
    async with (
        fakes(SLOWLY, SLOWLY) as (a, b),
        tcp_proxy(a.address) as way,
        ResilientChannel(two(way.address, b.address)) as channel,
    ):
        requests = [story(each, model="fake", tokens=size(12, 40)) for each in range(number)]
        undisturbed = await side_by_side(channel, requests)
        tally = Tally(await side_by_side(channel, requests, strike=getattr(way, mishap)), undisturbed)
    record_property("figures", tally.figures("4", form=f"a proxy: {mishap}"))
    assert_whole(tally)
    assert tally.attempts <= 3.0


async def test_a_slow_way_is_no_fault(record_property: Any) -> None:
    async with (
        fakes(SLOWLY, SLOWLY) as (a, b),
        tcp_proxy(a.address) as way,
        ResilientChannel(two(way.address, b.address)) as channel,
    ):
        requests = [story(each, model="fake", tokens=size(12, 40)) for each in range(10)]
        tally = Tally(await side_by_side(channel, requests, strike=lambda: way.delay(0.2)))
    record_property("figures", tally.figures("4", form="a proxy: 200 ms late"))
    assert_whole(tally)
    assert (tally.attempts, b.calls) == (1.0, [])


@pytest.mark.slow
@pytest.mark.timeout(240)
async def test_a_client_cut_off_from_a_region_leaves_it_and_comes_back_bit_by_bit(record_property: Any) -> None:
    # The region is up all the time: only this client cannot see it.
    policy = FailoverPolicy() if FULL else FailoverPolicy(return_after_s=2.0, slow_start_s=4.0)
    ends_after_s = policy.return_after_s + policy.slow_start_s + 4.0
    quick = Script(tokens=("a", "b"))
    async with (
        fakes(quick, quick) as (a, b),
        tcp_proxy(a.address) as way,
        ResilientChannel(two(way.address, b.address, failover=policy)) as channel,
    ):
        calls: list[Call] = []
        until_s = time.monotonic() + 1.0
        healed_at = 0.0
        way_is_cut = False
        requests = [story(0, model="fake", tokens=2)]
        while time.monotonic() < until_s or not healed_at:
            calls += await side_by_side(channel, requests)
            if not way_is_cut and time.monotonic() >= until_s:
                way.cut()
                way_is_cut, until_s = True, time.monotonic() + 1.5
            elif way_is_cut and not healed_at and time.monotonic() >= until_s:
                way.heal()
                healed_at, until_s = time.monotonic(), time.monotonic() + ends_after_s
            await asyncio.sleep(0.005)
    near_at = sorted(call.at for call in a.calls if call.at > healed_at)
    far_at = [call.at for call in b.calls]
    tally = Tally(calls)
    first_share_at = next(at for at in near_at if at - healed_at > policy.return_after_s)
    in_first_second = sum(first_share_at <= at < first_share_at + 1.0 for at in near_at)
    beside_it = sum(first_share_at <= at < first_share_at + 1.0 for at in far_at)
    share = in_first_second / max(1, in_first_second + beside_it)
    back_after_s = first_share_at - healed_at
    record_property("figures", tally.figures("17", back_after_s=round(back_after_s, 2), first_second=round(share, 3)))
    assert_whole(tally)
    # The share grows by a quarter of itself a second in the short form.
    assert share <= (0.2 if FULL else 0.45)
    assert back_after_s <= policy.return_after_s + 8.0
    assert not [at for at in far_at if at > near_at[-1] - 0.5]


NAMESPACE = f"inferwire-{os.getpid()}"
# A run that was killed leaves its network behind; another one must not meet it.
HERE, THERE = (f"10.213.{os.getpid() % 250}.{end}" for end in (1, 2))
SERVE = """
import asyncio, sys
from inferwire.testing import FakeServer, Script
async def main():
    script = Script(tokens=[f"word {number} " for number in range(40)], token_delay_s=0.02)
    server = FakeServer([script], address=sys.argv[1])
    await server.start()
    print("serving", flush=True)
    await asyncio.Event().wait()
asyncio.run(main())
"""


def ip(*arguments: str, check: bool = True) -> bool:
    done = subprocess.run(["ip", *arguments], capture_output=True, check=False)
    assert done.returncode == 0 or not check, done.stderr
    return done.returncode == 0


def link(state: str) -> None:
    """Of the namespace's end: `up` or `down`."""
    ip("-n", NAMESPACE, "link", "set", "inside", state)


@asynccontextmanager
async def a_server_in_a_namespace() -> AsyncIterator[str]:
    """Its address; skips where namespaces are not permitted."""
    try:
        is_permitted = ip("netns", "add", NAMESPACE, check=False)
    except FileNotFoundError:
        is_permitted = False
    if not is_permitted:
        pytest.skip("network namespaces are not permitted here")
    name = f"iw{os.getpid() % 100_000}"
    try:
        ip("link", "add", name, "type", "veth", "peer", "name", "inside", "netns", NAMESPACE)
        ip("addr", "add", f"{HERE}/30", "dev", name)
        ip("link", "set", name, "up")
        ip("-n", NAMESPACE, "addr", "add", f"{THERE}/30", "dev", "inside")
        link("up")
        address = f"{THERE}:50051"
        command = ["ip", "netns", "exec", NAMESPACE, sys.executable, "-c", SERVE, address]
        process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        try:
            assert process.stdout is not None
            async with asyncio.timeout(60):
                await process.stdout.readline()
            yield address
        finally:
            process.kill()
            await process.wait()
    finally:
        ip("netns", "del", NAMESPACE)


@pytest.mark.slow
@pytest.mark.timeout(240)
async def test_a_link_that_goes_down_is_a_black_hole_and_is_left(record_property: Any) -> None:
    number = size(30, 200)
    async with (
        a_server_in_a_namespace() as there,
        fakes(SLOWLY) as (b,),
        ResilientChannel(two(there, b.address, keepalive=ATTENTIVE)) as channel,
    ):
        requests = [story(each, model="fake") for each in range(number)]
        undisturbed = await side_by_side(channel, requests)
        tally = Tally(await side_by_side(channel, requests, strike=lambda: link("down")), undisturbed)
        fleet = channel.fleet()
        await until(lambda: fleet.links[0].state.is_serving is None, within_s=30)
        link("up")
        began = time.monotonic()
        await until(lambda: fleet.links[0].state.is_serving is True, within_s=30)
        healed_s = time.monotonic() - began
    record_property(
        "figures",
        tally.figures("4", form="a link down", stall_ms=1000 * STALL_S, connected_again_s=round(healed_s, 2)),
    )
    assert_whole(tally)
    assert tally.attempts <= 3.0
