"""Rows 5 to 8: regions that are slow, fail, refuse, or are all gone."""

from __future__ import annotations

import asyncio
import time
from random import Random
from typing import Any

import pytest
from inferwire import ResilientChannel
from inferwire.errors import AllRegionsDown, Code, Reason
from inferwire.settings import HedgePolicy
from inferwire.testing import BareStatus, Refusal, Script

from bench.quantiles import quantile
from tests.chaos.calls import FULL, Call, Tally, assert_whole, replied, side_by_side, size, story, streamed
from tests.client.policy.simulated_calls import Simulation, refusal
from tests.client.policy.test_policies_together import arrivals, config, ok, servers
from tests.client.regions_of_fakes import config_of, fakes

QUICK = Script(first_token_delay_s=0.01)
SLOW_S = 1.0


async def test_a_hedge_cuts_the_tail_of_first_tokens_for_one_in_twenty_attempts_more(record_property: Any) -> None:
    number, seed = size(80, 2000), 5
    draw = Random(seed)
    # Few calls, evenly: chance could make every tenth of them slow, and that would be usual then.
    slow = [draw.random() < 0.03 if FULL else each % 34 == 33 for each in range(number)]
    scripts = tuple(Script(first_token_delay_s=SLOW_S) if is_slow else QUICK for is_slow in slow)
    hedge = HedgePolicy(enabled=True, min_delay_s=0.1)
    async with fakes(scripts, QUICK) as (a, b), ResilientChannel(config_of(a, b, hedge=hedge)) as channel:
        calls = [await streamed(channel, story(each, model="fake")) for each in range(number)]
    tally = Tally(calls)
    # Until twenty calls have earned it, nothing can be hedged.
    first_tokens = [1000 * call.first_token_s for call in calls[20:]]
    p50, p99 = quantile(first_tokens, 0.5), quantile(first_tokens, 0.99)
    extra = tally.attempts - 1.0
    figures = tally.figures("5", seed=seed, first_token_ms={"p50": round(p50, 1), "p99": round(p99, 1)}, delay_ms=100)
    record_property("figures", figures)
    assert_whole(tally)
    assert extra <= 0.05
    assert sum(each > 1000 * SLOW_S for each in first_tokens) <= 0.01 * number


@pytest.mark.parametrize("after", [None, 2], ids=["before the first token", "after it"])
@pytest.mark.parametrize("unary", [False, True], ids=["stream", "unary"])
async def test_a_region_that_answers_unavailable_costs_few_attempts(
    after: int | None, unary: bool, record_property: Any
) -> None:
    number = size(60, 1000)
    failing = Script(mishap=BareStatus(Code.UNAVAILABLE, "no"), after_tokens=after)
    async with fakes(failing, Script()) as (a, b), ResilientChannel(config_of(a, b)) as channel:
        one = replied if unary else streamed
        calls = [await one(channel, story(each, model="fake")) for each in range(number)]
    tally = Tally(calls)
    form = f"{'unary' if unary else 'stream'}, {'before' if after is None else 'after'} the first token"
    record_property("figures", tally.figures("6", form=form))
    assert_whole(tally)
    # Five failures open the breaker; then only probes.
    assert len(a.calls) <= 5 + 0.05 * number


def test_a_region_without_room_loses_nothing_and_is_soon_left_alone(record_property: Any) -> None:
    number = 3_000
    simulation = Simulation(config(), servers(lambda _: refusal(Reason.OVERLOADED, 0.5), ok))
    tally = arrivals(simulation, number, over_s=10.0)
    late = [at for at, _ in tally.attempts if at >= 2.0]
    figures = {"row": "7", "form": "one region, virtual time", "seed": 5, "n": number, "lost": number - tally.ok}
    attempts, after = len(tally.attempts) / number, len(late) / (0.8 * number)
    record_property("figures", figures | {"attempts": round(attempts, 3), "attempts_after_2s": round(after, 3)})
    assert tally.ok == number
    assert attempts <= 1.2
    assert after <= 1.1


async def test_a_negative_pushback_is_final_and_a_hint_is_kept(record_property: Any) -> None:
    never = Script(mishap=BareStatus(Code.RESOURCE_EXHAUSTED, "no", pushback_ms="-1"))
    async with fakes(never, Script()) as (a, b), ResilientChannel(config_of(a, b)) as channel:
        call = await streamed(channel, story(0, model="fake"))
    assert (call.attempts, b.calls) == (1, [])
    later = Script(mishap=Refusal(Reason.OVERLOADED, hint_s=0.5))
    async with fakes((later, Script())) as (c,), ResilientChannel(config_of(c)) as channel:
        call = await streamed(channel, story(0, model="fake"))
    waited_s = c.calls[1].at - c.calls[0].at
    record_property("figures", {"row": "7", "form": "hint of 500 ms", "n": 1, "waited_ms": round(1000 * waited_s, 1)})
    assert call.error is None
    assert waited_s >= 0.5


async def test_a_total_outage_is_answered_here(record_property: Any) -> None:
    number = size(80, 1000)
    async with fakes(Script(), Script()) as (a, b), ResilientChannel(config_of(a, b)) as channel:
        await side_by_side(channel, [story(0, model="fake")])
        await a.kill()
        await b.kill()
        calls: list[Call] = []
        for each in range(number):
            calls.append(await replied(channel, story(each, model="fake"), timeout_s=2.0))
            await asyncio.sleep(0.005)
    local = [1000 * call.duration_s for call in calls if not call.attempts]
    attempts = sum(call.attempts for call in calls) / number
    record_property(
        "figures",
        {"row": "8", "n": number, "attempts": round(attempts, 3), "local_failure_ms": round(quantile(local, 0.99), 2)},
    )
    errors = [getattr(call.error, "error", None) for call in calls]
    assert all(isinstance(error, AllRegionsDown) and set(error.regions) == {"r0", "r1"} for error in errors)
    assert attempts <= 1.1
    assert local
    assert max(call.duration_s for call in calls) < 10.0


async def test_a_deadline_is_kept_whatever_is_tried(record_property: Any) -> None:
    hint = Script(mishap=Refusal(Reason.STARTING, hint_s=0.3))
    async with fakes(hint, hint) as (a, b), ResilientChannel(config_of(a, b)) as channel:
        began = time.monotonic()
        call = await streamed(channel, story(0, model="fake"), timeout_s=0.5)
        took_s = time.monotonic() - began
    record_property("figures", {"row": "8", "form": "deadline of 500 ms", "n": 1, "took_ms": round(1000 * took_s, 1)})
    assert call.error is not None
    assert took_s < 5.0
