"""Overload and outages in virtual time: what all policies together send, lose and hold back."""

from __future__ import annotations

import pytest
from inferwire.errors import Code, Reason
from inferwire.policy.failure import Failure, FailureKind
from inferwire.settings import (
    BudgetPolicy,
    ClientConfig,
    FailoverPolicy,
    Region,
    RetryPolicy,
)

from tests.client.policy.simulated_calls import (
    LOST,
    LOST_IN_MID_STREAM,
    Answer,
    Simulation,
    Tally,
    refusal,
)

EU = ("eu/10.0.0.1:1", "eu/10.0.0.2:1")
US = ("us/10.1.0.1:1", "us/10.1.0.2:1")


def config(*, endpoints: int = 2, **changes: object) -> ClientConfig:
    eu = tuple(key.partition("/")[2] for key in EU[:endpoints])
    us = tuple(key.partition("/")[2] for key in US[:endpoints])
    regions = (Region(name="eu", endpoints=eu), Region(name="us", priority=1, endpoints=us))
    return ClientConfig(regions=regions).with_changes(**changes)


def ok(now: float) -> None:
    return None


def servers(eu: Answer, us: Answer) -> dict[str, Answer]:
    return dict.fromkeys(EU, eu) | dict.fromkeys(US, us)


def everywhere(failure: Failure) -> dict[str, Answer]:
    return servers(lambda _: failure, lambda _: failure)


def arrivals(simulation: Simulation, count: int, *, over_s: float = 0.0) -> Tally:
    for number in range(count):
        simulation.call_at(number * over_s / count)
    return simulation.run()


# --- one retry layer, bounded and jittered ---


def test_one_call_against_dead_regions_makes_exactly_its_attempts() -> None:
    dead = everywhere(refusal(Reason.ENGINE_DOWN, 0.1))
    simulation = Simulation(config(endpoints=1, retry=RetryPolicy(max_attempts=3)), dead)

    tally = arrivals(simulation, 1)

    assert [key[:2] for _, key in tally.attempts] == ["eu", "us", "eu"]
    assert tally.failed == {"ENGINE_DOWN": 1}


def test_two_hundred_callers_at_once_stay_within_the_budget() -> None:
    dead = everywhere(refusal(Reason.ENGINE_DOWN, 0.1))
    limits = config(endpoints=1, retry=RetryPolicy(max_attempts=3), budget=BudgetPolicy(reserve=10))

    tally = arrivals(Simulation(limits, dead), 200)

    assert 200 < len(tally.attempts) <= 240
    assert tally.failed == {"ENGINE_DOWN": 200}
    retries = [at for at, _ in tally.attempts if at > 0.0]
    assert len(set(retries)) == len(retries)


def test_a_total_outage_soon_sends_almost_nothing() -> None:
    tally = arrivals(Simulation(config(), everywhere(LOST)), 3_000, over_s=30.0)

    assert len(tally.attempts) <= 1.1 * 3_000
    assert len(tally.attempts) < 0.3 * 3_000
    assert tally.ok == 0


def test_calls_that_all_regions_refuse_stay_within_a_tenth_more() -> None:
    tally = arrivals(Simulation(config(), everywhere(refusal(Reason.OVERLOADED, 0.5))), 3_000, over_s=10.0)

    assert len(tally.attempts) <= 1.1 * 3_000
    assert tally.refused > 0


# --- nothing lost while one region can serve ---


@pytest.mark.parametrize("reason", [Reason.OVERLOADED, Reason.STARTING, Reason.ENGINE_DOWN, Reason.DRAINING])
def test_a_region_that_refuses_everything_loses_no_call(reason: Reason) -> None:
    tally = arrivals(Simulation(config(), servers(lambda _: refusal(reason, 0.5), ok)), 300, over_s=3.0)

    assert tally.ok == 300
    assert len(tally.attempts) <= 1.2 * 300


def test_a_dead_region_loses_no_call_and_costs_few_attempts() -> None:
    tally = arrivals(Simulation(config(), servers(lambda _: LOST, ok)), 300, over_s=3.0)

    assert tally.ok == 300
    assert len(tally.attempts) <= 1.2 * 300


def test_a_region_killed_under_two_hundred_streams_loses_none_even_without_a_budget() -> None:
    empty = config(budget=BudgetPolicy(ratio=0.0, reserve=0))

    tally = arrivals(Simulation(empty, servers(lambda _: LOST_IN_MID_STREAM, ok)), 200)

    assert tally.ok == 200
    assert len(tally.attempts) <= 3 * 200


def test_one_bad_endpoint_of_two_loses_no_call_and_its_region_keeps_seven_tenths() -> None:
    answers = servers(ok, ok) | {EU[0]: lambda _: LOST}

    tally = arrivals(Simulation(config(), answers), 300, over_s=3.0)

    assert tally.ok == 300
    assert 0.15 * 300 < tally.sent_to("us") < 0.4 * 300


def test_an_unexplained_fault_everywhere_is_tried_twice() -> None:
    unexplained = Failure(kind=FailureKind.STATUS, code=Code.INTERNAL)

    tally = arrivals(Simulation(config(), everywhere(unexplained)), 1)

    assert len(tally.attempts) == 2
    assert tally.failed == {"INTERNAL": 1}


# --- coming back ---


def test_a_region_that_returns_is_found_and_filled_slowly() -> None:
    def down_for_a_while(now: float) -> Failure | None:
        return LOST if 2.0 <= now < 4.5 else None

    slow = config(failover=FailoverPolicy(return_after_s=10.0, slow_start_s=10.0, slow_start_share=0.1))
    tally = arrivals(Simulation(slow, servers(down_for_a_while, ok)), 4_000, over_s=40.0)

    probed_at = next(at for at, key in tally.attempts if key.startswith("eu/") and at >= 4.5)
    assert tally.ok == 4_000
    assert probed_at < 8.0
    # Only probes of what has not answered yet, until it has been well for its time.
    assert tally.sent_to("eu", probed_at, probed_at + 10.0) <= 5
    assert 0 < tally.sent_to("eu", probed_at + 10.0, probed_at + 11.0) <= 25
    assert tally.sent_to("us", probed_at + 21.0) == 0
