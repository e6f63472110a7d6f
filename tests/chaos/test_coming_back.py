"""Rows 9, 10 and 11: servers that flap, a region that returns under load, and a rolling restart."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from functools import partial
from typing import Any

import pytest
from inferwire import ResilientChannel
from inferwire.channels import Link
from inferwire.policy.breaker import BreakerState
from inferwire.policy.failure import Failure
from inferwire.settings import FailoverPolicy
from inferwire.testing import FakeServer, Script

from tests.chaos.calls import Call, Tally, assert_whole, replied, side_by_side, size, story, streamed
from tests.chaos.places import config_of, places
from tests.client.policy.simulated_calls import LOST, Answer, Simulation
from tests.client.policy.test_policies_together import EU, arrivals, config, ok, servers
from tests.client.regions_of_fakes import channel_to, fakes
from tests.polling import until

SECONDS = 60
A_SECOND = 100


def test_a_minute_of_flapping_costs_few_attempts_and_fewer_each_time(record_property: Any) -> None:
    def flaps(now: float) -> Failure | None:
        return LOST if int(now) % 2 else None

    number = SECONDS * A_SECOND
    simulation = Simulation(config(), servers(flaps, ok))
    tally = arrivals(simulation, number, over_s=float(SECONDS))
    failed = number - tally.ok
    near = [at for at, key in tally.attempts if key in EU]
    figures = {"row": "9", "form": "virtual time", "seed": 5, "n": number, "lost": failed}
    record_property("figures", figures | {"attempts": round(len(tally.attempts) / number, 4), "near": len(near)})
    assert failed == 0
    assert len(tally.attempts) <= 1.01 * number
    assert sum(at >= SECONDS / 2 for at in near) < sum(at < SECONDS / 2 for at in near)


@pytest.mark.slow
@pytest.mark.timeout(180)
async def test_a_server_that_flaps_has_one_probe_at_a_time(record_property: Any) -> None:
    seconds = size(4, SECONDS)
    failover = FailoverPolicy(return_after_s=0.0, slow_start_s=0.0)
    slow = Script(tokens=("a", "b"), token_delay_s=0.02)
    async with fakes(slow, slow) as (a, b), channel_to(a, b, failover=failover) as channel:
        flapping = asyncio.create_task(_flap(a, seconds))
        calls: list[Call] = []
        most = 0
        while not flapping.done():
            running = [asyncio.create_task(streamed(channel, story(each, model="fake"))) for each in range(10)]
            await asyncio.sleep(0.01)
            state = channel.fleet().links[0].state
            if state.breaker.state is BreakerState.HALF_OPEN:
                most = max(most, int(state.outstanding))
            calls += await asyncio.gather(*running)
        await flapping
    tally = Tally(calls)
    record_property("figures", tally.figures("9", form="a server killed and started each second", probes_at_once=most))
    assert_whole(tally)
    assert most <= 1


async def _flap(server: FakeServer, seconds: int) -> None:
    for _ in range(seconds // 2):
        await server.kill()
        await asyncio.sleep(1.0)
        await server.start()
        await asyncio.sleep(1.0)


@pytest.mark.parametrize("down_s", [2.5, 20.0])
def test_a_region_that_returns_is_not_stormed(down_s: float, record_property: Any) -> None:
    def down_for_a_while(now: float) -> Failure | None:
        return LOST if 2.0 <= now < 2.0 + down_s else None

    answers: dict[str, Answer] = servers(down_for_a_while, ok)
    seconds = down_s + 40.0
    number = int(seconds * A_SECOND)
    tally = arrivals(Simulation(config(), answers), number, over_s=seconds)
    back = sorted(at for at, key in tally.attempts if key in EU and at >= 2.0 + down_s)
    # What is probed is no traffic: that begins when the region has been well for its time.
    begins = next(at for at in back if sum(at <= other < at + 1.0 for other in back) > 5)
    share = sum(begins <= at < begins + 1.0 for at in back) / A_SECOND
    record_property(
        "figures",
        {"row": "10", "form": f"virtual time, {down_s:g} s down", "seed": 5, "n": number, "lost": number - tally.ok}
        | {"first_second": round(share, 3), "back_after_s": round(begins - 2.0 - down_s, 2)},
    )
    assert tally.ok == number
    assert share <= 0.2


def _all_serve(links: Iterable[Link]) -> bool:
    return all(link.state.is_serving for link in links)


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_a_rolling_restart_under_load_shows_no_caller_an_error(record_property: Any) -> None:
    async with (
        places([{}, {}], [{}], drain_limit=2.0) as (near, far),
        ResilientChannel(config_of([near, far])) as channel,
    ):
        expected = await side_by_side(channel, [story(each) for each in range(8)])
        is_over = asyncio.Event()
        calls: list[Call] = []
        undisturbed: list[Call] = []

        async def caller(number: int) -> None:
            while not is_over.is_set():
                one = replied if number % 4 == 3 else streamed
                calls.append(await one(channel, story(number)))
                undisturbed.append(expected[number])

        callers = [asyncio.create_task(caller(number)) for number in range(8)]
        began = time.monotonic()
        for place in [*near, *far] * size(1, 3):
            await place.drained()
            await place.restart()
            links = channel.fleet().links
            await until(partial(_all_serve, links), within_s=60)
        is_over.set()
        await asyncio.gather(*callers)
    tally = Tally(calls, undisturbed)
    record_property("figures", tally.figures("11", seconds=round(time.monotonic() - began, 1)))
    assert_whole(tally)
    assert tally.attempts <= 2.0
