"""Which endpoint takes an attempt."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from random import Random

import pytest
from inferwire.errors import LocalReason
from inferwire.policy.endpoint import EndpointState
from inferwire.policy.picker import Picked, Picker, Refused
from inferwire.policy.visits import Visits
from inferwire.settings import FailoverPolicy

from tests.client.policy.endpoints import endpoint, open_breaker, refuse

CALM = FailoverPolicy(panic_share=0.0)


class World:
    """Two regions of two endpoints, `eu` nearer than `us`."""

    def __init__(self, policy: FailoverPolicy = CALM) -> None:
        self.picker = Picker(policy, Random(3))
        self.eu = [endpoint("eu/a"), endpoint("eu/b")]
        self.us = [endpoint("us/c", 1), endpoint("us/d", 1)]
        self.all = self.eu + self.us
        self.shares = {"eu": 1.0, "us": 1.0}
        self.visits = Visits()

    def ask(
        self, now: float = 0.0, *, may_return: bool = False, fits_within_s: float | None = None
    ) -> Picked | Refused:
        return self.picker.pick(
            self.all, self.shares, self.visits, now, may_return=may_return, fits_within_s=fits_within_s
        )

    def where(self, now: float = 0.0, *, may_return: bool = False, fits_within_s: float | None = None) -> str:
        answer = self.ask(now, may_return=may_return, fits_within_s=fits_within_s)
        assert isinstance(answer, Picked)
        answer.permit.abandon()
        return answer.endpoint.key

    def spread(self, picks: int = 1_000, now: float = 0.0) -> Counter[str]:
        return Counter(self.where(now) for _ in range(picks))

    def fail(
        self, key: str, *, is_fault: bool = True, leaves_region: bool = False, returns_at: float | None = None
    ) -> None:
        self.visits.failed(
            key, key.partition("/")[0], is_fault=is_fault, leaves_region=leaves_region, returns_at=returns_at
        )

    def reasons(self, now: float = 0.0) -> dict[str, LocalReason]:
        answer = self.ask(now)
        assert isinstance(answer, Refused)
        return dict(answer.regions)


@pytest.fixture
def world() -> World:
    return World()


def all_not_serving(endpoints: Sequence[EndpointState]) -> None:
    for one in endpoints:
        one.is_serving = False


def all_breakers_open(endpoints: Sequence[EndpointState]) -> None:
    for one in endpoints:
        open_breaker(one)


# --- region ---


def test_the_nearest_region_takes_everything_while_it_is_well(world: World) -> None:
    assert set(world.spread()) == {"eu/a", "eu/b"}


def test_regions_of_equal_priority_share(world: World) -> None:
    world.all = [endpoint("eu/a"), endpoint("us/c")]

    assert min(world.spread().values()) > 400


@pytest.mark.parametrize("trouble", [all_not_serving, all_breakers_open])
def test_the_next_region_takes_over_when_no_endpoint_is_left(
    world: World, trouble: Callable[[Sequence[EndpointState]], None]
) -> None:
    trouble(world.eu)

    assert set(world.spread()) == {"us/c", "us/d"}


def test_a_region_that_returned_gets_its_share_only(world: World) -> None:
    world.shares["eu"] = 0.1

    spread = world.spread(5_000)

    assert (spread["eu/a"] + spread["eu/b"]) / 5_000 == pytest.approx(0.1, abs=0.02)


def test_a_region_that_returned_takes_everything_when_there_is_no_other(world: World) -> None:
    world.shares["eu"] = 0.1
    all_not_serving(world.us)

    assert set(world.spread()) == {"eu/a", "eu/b"}


def test_a_region_that_is_not_given_is_never_picked(world: World) -> None:
    world.all, world.shares = world.us, {"us": 1.0}
    all_not_serving(world.us)

    assert world.reasons() == {"us": LocalReason.NOT_SERVING}


# --- inside a region ---


def test_the_less_busy_endpoint_is_preferred(world: World) -> None:
    world.eu[0].begin(5)

    assert set(world.spread()) == {"eu/b"}


def test_the_faster_endpoint_is_preferred_at_equal_work(world: World) -> None:
    world.eu[0].first_token.observe(0.4, 0.0)
    world.eu[1].first_token.observe(0.1, 0.0)

    assert set(world.spread()) == {"eu/b"}


def test_work_and_speed_are_weighed_against_each_other(world: World) -> None:
    world.eu[0].first_token.observe(0.1, 0.0)
    world.eu[0].begin(7)
    world.eu[1].first_token.observe(0.4, 0.0)

    assert set(world.spread()) == {"eu/b"}


def test_an_endpoint_once_slow_is_tried_again_after_a_while(world: World) -> None:
    world.eu[0].first_token.observe(1.0, 0.0)
    world.eu[1].first_token.observe(0.1, 40.0)

    assert set(world.spread(now=40.0)) == {"eu/a"}


def test_an_endpoint_that_was_never_measured_shares_with_the_other(world: World) -> None:
    world.eu[0].first_token.observe(0.4, 0.0)

    assert min(world.spread().values()) > 400


def test_two_of_many_are_compared_so_that_no_single_one_draws_everybody(world: World) -> None:
    world.all = [endpoint(f"eu/{number}") for number in range(10)]
    for one in world.all[1:]:
        one.begin(1)

    spread = world.spread(2_000)

    assert spread["eu/0"] / 2_000 == pytest.approx(0.2, abs=0.04)
    assert len(spread) == 10


# --- what this call has seen ---


def test_a_call_does_not_go_where_it_has_failed(world: World) -> None:
    world.fail("eu/a")

    assert set(world.spread()) == {"eu/b"}


def test_a_second_fault_in_a_region_sends_the_call_to_the_next(world: World) -> None:
    world.all.append(endpoint("eu/x"))
    world.fail("eu/a")
    world.fail("eu/b")

    assert set(world.spread()) == {"us/c", "us/d"}


def test_refusals_do_not_count_as_faults_of_the_region(world: World) -> None:
    world.all.append(endpoint("eu/x"))
    world.fail("eu/a", is_fault=False)
    world.fail("eu/b", is_fault=False)

    assert set(world.spread()) == {"eu/x"}


def test_a_stall_sends_the_call_to_the_next_region_at_once(world: World) -> None:
    world.fail("eu/a", leaves_region=True)

    assert set(world.spread()) == {"us/c", "us/d"}


def test_a_region_left_is_still_better_than_none(world: World) -> None:
    world.fail("eu/a", leaves_region=True)
    all_not_serving(world.us)

    assert set(world.spread()) == {"eu/b"}


def test_a_region_left_is_worse_than_one_that_pushes_back(world: World) -> None:
    world.fail("eu/a", leaves_region=True)
    for one in world.us:
        one.push_back(1.0, 0.0)

    assert set(world.spread()) == {"us/c", "us/d"}


def test_a_call_goes_back_only_when_it_may_and_the_time_has_come(world: World) -> None:
    world.all = world.eu[:1]
    world.fail("eu/a", returns_at=2.0)

    assert isinstance(world.ask(3.0), Refused)
    assert isinstance(world.ask(1.9, may_return=True), Refused)
    assert world.where(2.0, may_return=True) == "eu/a"


def test_a_call_never_goes_back_where_that_cannot_help(world: World) -> None:
    world.all = world.eu[:1]
    world.fail("eu/a", returns_at=None)

    assert isinstance(world.ask(1e6, may_return=True), Refused)


def test_of_two_to_go_back_to_the_one_that_failed_last_comes_second(world: World) -> None:
    world.all = world.eu
    world.fail("eu/a", returns_at=1.0)
    world.fail("eu/b", returns_at=1.0)

    assert {world.where(1.0, may_return=True) for _ in range(100)} == {"eu/a"}


def test_only_endpoints_that_are_fast_enough_are_tried_when_time_is_short(world: World) -> None:
    for one in [*world.eu, world.us[0]]:
        one.first_token.observe(1.0, 0.0)

    assert {world.where(fits_within_s=0.5) for _ in range(100)} == {"us/d"}


# --- throttle and pushback ---


def test_a_region_that_refuses_most_sends_its_traffic_on(world: World) -> None:
    for one in world.eu:
        refuse(one, 100)

    spread = world.spread()

    assert spread["us/c"] + spread["us/d"] > 950


def test_a_first_attempt_is_not_sent_when_everybody_refuses_most(world: World) -> None:
    for one in world.all:
        refuse(one, 10_000)

    assert world.reasons() == {"eu": LocalReason.THROTTLED, "us": LocalReason.THROTTLED}


def test_a_retry_is_sent_even_then(world: World) -> None:
    for one in world.all:
        refuse(one, 10_000)
    world.fail("eu/a", is_fault=False)

    assert world.where() == "eu/b"


def test_an_endpoint_that_pushes_back_is_spared_for_its_time(world: World) -> None:
    world.eu[0].push_back(1.0, 0.0)

    assert set(world.spread(now=0.9)) == {"eu/b"}
    assert set(world.spread(now=1.0)) == {"eu/a", "eu/b"}


def test_an_endpoint_is_spared_for_five_seconds_at_most(world: World) -> None:
    world.eu[0].push_back(600.0, 0.0)

    assert set(world.spread(now=5.0)) == {"eu/a", "eu/b"}


def test_when_everybody_pushes_back_the_nearest_is_asked(world: World) -> None:
    for one in world.all:
        one.push_back(1.0, 0.0)

    assert set(world.spread(now=0.5)) == {"eu/a", "eu/b"}


# --- breakers, outage, panic ---


def test_a_breaker_that_is_due_gets_one_probe_and_the_rest_goes_on(world: World) -> None:
    all_breakers_open(world.eu)

    answers = [world.ask(1.0) for _ in range(50)]
    keys = Counter(answer.endpoint.key for answer in answers if isinstance(answer, Picked))

    assert (keys["eu/a"], keys["eu/b"]) == (1, 1)
    assert keys["us/c"] + keys["us/d"] == 48


def test_a_total_outage_names_each_regions_reason(world: World) -> None:
    all_breakers_open(world.eu)
    all_not_serving(world.us)

    assert world.reasons() == {"eu": LocalReason.BREAKER_OPEN, "us": LocalReason.NOT_SERVING}


def test_a_region_without_addresses_says_so(world: World) -> None:
    world.all = []

    assert world.reasons() == {"eu": LocalReason.NO_ENDPOINT, "us": LocalReason.NO_ENDPOINT}


def test_in_a_total_outage_a_tenth_of_the_calls_may_probe_early() -> None:
    world = World(FailoverPolicy(panic_share=0.1))
    all_breakers_open(world.all)

    probes = 0
    for _ in range(2_000):
        answer = world.ask(0.1)
        if isinstance(answer, Picked):
            probes += 1
            answer.permit.failure(0.1)

    assert probes / 2_000 == pytest.approx(0.1, abs=0.03)


def test_panic_never_puts_two_probes_on_one_endpoint() -> None:
    world = World(FailoverPolicy(panic_share=1.0))
    all_breakers_open(world.all)

    keys = [answer.endpoint.key for answer in (world.ask(0.1) for _ in range(100)) if isinstance(answer, Picked)]

    assert sorted(keys) == ["eu/a", "eu/b", "us/c", "us/d"]


def test_no_panic_while_something_is_well_and_none_where_health_says_no() -> None:
    world = World(FailoverPolicy(panic_share=1.0))
    open_breaker(world.eu[0])
    all_not_serving([*world.eu[1:], *world.us])
    world.all = [*world.eu[1:], *world.us]

    assert set(world.reasons().values()) == {LocalReason.NOT_SERVING}


def test_a_few_that_are_well_among_many_are_a_panic_too() -> None:
    world = World(FailoverPolicy(panic_share=1.0))
    world.all = [endpoint(f"eu/{number}") for number in range(4)]
    all_breakers_open(world.all[1:])

    probes = [world.ask(0.1) for _ in range(3)]

    assert {one.endpoint.key for one in probes if isinstance(one, Picked)} == {"eu/1", "eu/2", "eu/3"}
    world.all.append(endpoint("us/x", 1))
    assert set(world.spread(now=0.1)) == {"eu/0"}


def test_a_region_left_for_its_health_is_still_probed(world: World) -> None:
    all_breakers_open(world.eu)
    world.shares["eu"] = 0.0

    keys = [answer.endpoint.key for answer in (world.ask(2.0) for _ in range(10)) if isinstance(answer, Picked)]

    assert sorted(keys[:2]) == ["eu/a", "eu/b"]
    assert set(keys[2:]) <= {"us/c", "us/d"}


def test_a_far_region_that_says_it_serves_is_probed_before_it_is_needed(world: World) -> None:
    all_breakers_open(world.us)
    assert set(world.spread(now=0.1)) == {"eu/a", "eu/b"}

    world.us[0].is_serving = True
    keys = [answer.endpoint.key for answer in (world.ask(2.0) for _ in range(10)) if isinstance(answer, Picked)]

    assert keys[0] == "us/c"
    assert set(keys[1:]) <= {"eu/a", "eu/b"}


def test_a_call_that_moves_goes_last_where_the_connection_is_lost(world: World) -> None:
    world.fail("eu/a")
    world.eu[1].is_cut_off = True
    assert set(world.spread()) == {"us/c", "us/d"}

    for one in world.us:
        one.is_cut_off = True
    assert set(world.spread()) == {"eu/b"}


def test_regions_of_equal_priority_are_left_together(world: World) -> None:
    world.all = [endpoint("eu/a"), endpoint("us/b"), endpoint("cn/c", 1)]
    world.shares = {"eu": 0.7, "us": 0.7, "cn": 1.0}

    assert world.spread(5_000)["cn/c"] / 5_000 == pytest.approx(0.3, abs=0.03)


# --- affinity ---


def test_calls_with_a_key_meet_inside_the_nearest_region(world: World) -> None:
    def where(key: bytes) -> str:
        answer = world.picker.pick(world.all, world.shares, world.visits, 0.0, key=key)
        assert isinstance(answer, Picked)
        return answer.endpoint.key

    places = {key: {where(key) for _ in range(20)} for key in (b"one", b"two", b"three", b"four", b"five")}

    assert all(len(place) == 1 for place in places.values())
    assert set.union(*places.values()) == {"eu/a", "eu/b"}
    world.eu[0].is_serving = False
    assert {where(key) for key in places} == {"eu/b"}


# --- a second attempt beside the first ---


def beside(world: World, busy: EndpointState) -> str | None:
    picked = world.picker.pick_beside(busy, world.all, world.shares, 0.0)
    return None if picked is None else picked.endpoint.key


def test_a_hedge_goes_to_another_endpoint_of_the_nearest_region(world: World) -> None:
    assert {beside(world, world.eu[0]) for _ in range(20)} == {"eu/b"}


@pytest.mark.parametrize("trouble", ["probed", "open", "pushes back", "refuses", "not serving"])
def test_a_hedge_goes_only_where_all_is_well(world: World, trouble: str) -> None:
    for one in [*world.eu[1:], *world.us]:
        if trouble in ("probed", "open"):
            open_breaker(one)
        if trouble == "probed":
            one.breaker.acquire(10.0)
        elif trouble == "pushes back":
            one.push_back(1.0, 0.0)
        elif trouble == "refuses":
            refuse(one, 100)
        elif trouble == "not serving":
            one.is_serving = False

    assert beside(world, world.eu[0]) is None


def test_a_hedge_avoids_a_region_in_which_anything_is_probed(world: World) -> None:
    open_breaker(world.us[0])
    world.us[0].breaker.acquire(10.0)
    world.eu[1].is_serving = False

    assert beside(world, world.eu[0]) is None


# --- one endpoint ---


def test_a_given_endpoint_is_picked_if_it_takes_calls(world: World) -> None:
    answer = world.picker.pick_only(world.us[1], 0.0)
    assert isinstance(answer, Picked)
    assert answer.endpoint is world.us[1]

    world.us[1].is_serving = False
    refusal = world.picker.pick_only(world.us[1], 0.0)
    assert refusal == Refused({"us": LocalReason.NOT_SERVING})


def test_an_endpoint_shows_its_state() -> None:
    one = endpoint("eu/a")
    one.is_serving = True
    one.begin(3)
    one.first_token.observe(0.12, 0.0)

    assert repr(one) == "<Endpoint eu/a serving, breaker closed, 3 outstanding, first token 0.120 s>"


def test_visits_show_where_a_call_has_been(world: World) -> None:
    world.fail("eu/a", leaves_region=True, returns_at=4.0)

    assert repr(world.visits) == "<Visits eu/a, left eu>"
    assert world.visits.next_return(1.0) == 4.0
    assert world.visits.next_return(4.0) is None
