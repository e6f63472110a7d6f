"""A first token that is late brings a second attempt elsewhere, and whichever is first is all that the caller sees."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from inferwire import AttemptEnded, Observer, ResilientChannel
from inferwire.errors import Reason
from inferwire.metrics import PrometheusObserver
from inferwire.settings import HedgePolicy
from inferwire.testing import RESET, BareStatus, FakeServer, Refusal, Script, Silence
from prometheus_client import CollectorRegistry

from tests.client.regions_of_fakes import config_of, fakes, request, stub_of, text_of

TEXT = "Hello, world!"
SOON = HedgePolicy(enabled=True, min_delay_s=0.05)
KNOWN = 20
"""So many first tokens must have been seen before one can be late, and they earn one hedge."""


class Attempts(Observer):
    def __init__(self) -> None:
        self.ended: list[AttemptEnded] = []

    def attempt_ended(self, attempt: AttemptEnded) -> None:
        self.ended.append(attempt)

    @property
    def hedges(self) -> list[AttemptEnded]:
        return [attempt for attempt in self.ended if attempt.is_hedge]


@asynccontextmanager
async def after_quick_calls(
    slow: Script, second: Script, *, hedge: HedgePolicy = SOON
) -> AsyncIterator[tuple[FakeServer, FakeServer, ResilientChannel, Attempts]]:
    """Two regions whose first one is slow from now on, and a channel that has learnt what is usual."""
    attempts = Attempts()
    async with (
        fakes((*[Script()] * KNOWN, slow), second) as (a, b),
        ResilientChannel(config_of(a, b, hedge=hedge), observer=attempts) as channel,
    ):
        for _ in range(KNOWN):
            await text_of(stub_of(channel).StreamGenerate(request()))
        yield a, b, channel, attempts


SLOW = Script(first_token_delay_s=20.0)


async def test_the_hedge_overtakes_and_the_slow_one_is_cancelled_on_its_server() -> None:
    async with after_quick_calls(SLOW, Script()) as (a, b, channel, attempts):
        call = stub_of(channel).StreamGenerate(request())
        events = [event async for event in call]
        trailers = dict(await call.trailing_metadata())
        await a.until(lambda: a.calls[-1].ending == "cancelled")
        breaker = repr(channel.fleet().links[0].state.breaker)

    assert "".join(event.delta.text for event in events) == TEXT
    assert [event.WhichOneof("event") for event in events].count("started") == 1
    assert (trailers["x-inferwire-attempts"], trailers["x-inferwire-served-by"]) == ("2", f"r1/{b.address}")
    assert "0 failures" in breaker
    assert [(each.region, each.code) for each in attempts.hedges] == [("r1", "OK")]


async def test_both_attempts_are_the_same_request_with_the_next_number() -> None:
    async with after_quick_calls(SLOW, Script()) as (a, b, channel, _):
        await text_of(stub_of(channel).StreamGenerate(request()))

    first, second = a.calls[-1], b.calls[-1]
    assert first.request.request_id == second.request.request_id != ""
    assert (first.attempt, second.attempt) == (first.request.attempt, second.request.attempt) == (0, 1)
    assert first.request.sampling.seed == second.request.sampling.seed
    assert second.request.expected_model.fingerprint == "fake-fingerprint"


async def test_hedges_are_counted_by_what_became_of_them() -> None:
    registry = CollectorRegistry()
    quick = (*[Script()] * KNOWN, Script(first_token_delay_s=0.3))
    async with (
        fakes(quick, Script()) as (a, b),
        ResilientChannel(config_of(a, b, hedge=SOON), observer=PrometheusObserver(registry)) as channel,
    ):
        for _ in range(KNOWN + 1):
            await text_of(stub_of(channel).StreamGenerate(request()))

    assert registry.get_sample_value("inferwire_client_hedges_total", {"region": "r1", "outcome": "won"}) == 1


async def test_a_first_one_that_comes_after_all_cancels_the_hedge() -> None:
    async with after_quick_calls(Script(first_token_delay_s=0.5), SLOW) as (_, b, channel, attempts):
        call = stub_of(channel).StreamGenerate(request())
        text = await text_of(call)
        await b.until(lambda: b.calls[-1].ending == "cancelled")
        trailers = dict(await call.trailing_metadata())

    assert (text, trailers["x-inferwire-served-by"][:2]) == (TEXT, "r0")
    assert [each.code for each in attempts.hedges] == ["CANCELLED"]


@pytest.mark.parametrize(
    "mishap",
    [Refusal(Reason.OVERLOADED, hint_s=0.1), Refusal(Reason.MODEL_MISMATCH), RESET],
    ids=["full", "other", "lost"],
)
async def test_a_hedge_that_fails_leaves_the_first_one_alone(mishap: BareStatus | Refusal) -> None:
    async with after_quick_calls(Script(first_token_delay_s=0.5), Script(mishap=mishap)) as (a, b, channel, _):
        text = await text_of(stub_of(channel).StreamGenerate(request()))

    assert (text, len(a.calls), len(b.calls)) == (TEXT, KNOWN + 1, 1)


async def test_a_first_one_that_fails_leaves_the_hedge_alone() -> None:
    dying = Script(mishap=Silence(), after_tokens=0)
    async with after_quick_calls(dying, Script(first_token_delay_s=1.0)) as (a, b, channel, attempts):
        running = asyncio.create_task(text_of(stub_of(channel).StreamGenerate(request())))
        await b.until(lambda: len(b.calls) == 1)
        await a.kill()
        text = await running

    assert text == TEXT
    assert [each.reason for each in attempts.ended[KNOWN:]] == ["CONNECTION_LOST", ""]


async def test_when_both_fail_the_stream_is_tried_again_as_any_other() -> None:
    dying = Script(mishap=Silence(), after_tokens=0)
    async with after_quick_calls(dying, dying) as (a, b, channel, attempts):
        running = asyncio.create_task(text_of(stub_of(channel).StreamGenerate(request())))
        await b.until(lambda: len(b.calls) == 1)
        await b.kill()
        a.scripts = (Script(),)
        b.scripts = (Script(),)
        watched = b.connections
        await b.start()
        await b.until(lambda: b.connections > watched)
        await a.kill()
        text = await running

    assert text == TEXT
    assert [each.reason for each in attempts.ended[KNOWN:]] == ["CONNECTION_LOST", "CONNECTION_LOST", ""]


async def test_hedges_stop_at_their_budget() -> None:
    async with after_quick_calls(Script(first_token_delay_s=0.3), Script()) as (_, b, channel, attempts):
        for _ in range(5):
            await text_of(stub_of(channel).StreamGenerate(request()))

    assert (len(attempts.hedges), len(b.calls)) == (1, 1)


async def test_nothing_is_hedged_unless_asked_for() -> None:
    late = Script(first_token_delay_s=0.5)
    async with after_quick_calls(late, Script(), hedge=HedgePolicy()) as (_, b, channel, attempts):
        await text_of(stub_of(channel).StreamGenerate(request()))

    assert (attempts.hedges, b.calls) == ([], [])


@pytest.mark.parametrize("trouble", ["half-open", "pushes back", "not serving"])
async def test_no_hedge_goes_where_it_would_hurt(trouble: str) -> None:
    async with after_quick_calls(Script(first_token_delay_s=0.4), Script()) as (_, b, channel, attempts):
        fleet = channel.fleet()
        other = fleet.links[1].state
        if trouble == "half-open":
            while (permit := other.breaker.acquire(fleet.clock())) is not None:
                permit.failure(fleet.clock())
            other.breaker.acquire(fleet.clock(), early=True)
        elif trouble == "pushes back":
            other.push_back(5.0, fleet.clock())
        else:
            b.say_serving(False)
            await fleet.until(lambda: other.is_serving is False)
        await text_of(stub_of(channel).StreamGenerate(request()))

    assert (attempts.hedges, b.calls) == ([], [])


async def test_leaving_a_race_cancels_both() -> None:
    async with after_quick_calls(SLOW, SLOW) as (a, b, channel, _):
        call = stub_of(channel).StreamGenerate(request())
        await call.read()
        task = asyncio.ensure_future(call.read())
        await b.until(lambda: len(b.calls) == 1)
        call.cancel()
        await a.until(lambda: a.calls[-1].ending == "cancelled")
        await b.until(lambda: b.calls[-1].ending == "cancelled")
        await asyncio.wait([task])
        outstanding = [link.state.outstanding for link in channel.fleet().links]

    assert outstanding == [0.0, 0.0]
