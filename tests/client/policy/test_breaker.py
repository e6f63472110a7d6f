"""One endpoint's breaker."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from random import Random

import pytest
from inferwire.policy.breaker import Breaker, BreakerState, Permit
from inferwire.settings import BreakerPolicy

POLICY = BreakerPolicy(open_jitter=0.0)


def breaker(policy: BreakerPolicy = POLICY, seed: int = 1) -> Breaker:
    return Breaker("eu/a", policy, Random(seed))


def state(one: Breaker) -> BreakerState:
    return one.state


def granted(one: Breaker, now: float = 0.0) -> Permit:
    permit = one.acquire(now)
    assert permit is not None
    return permit


def opened(policy: BreakerPolicy = POLICY, now: float = 0.0, seed: int = 1) -> Breaker:
    one = breaker(policy, seed)
    for _ in range(policy.consecutive_failures):
        granted(one, now).failure(now)
    return one


def test_opens_after_five_failures_in_a_row() -> None:
    one = breaker()
    for _ in range(4):
        granted(one).failure(0.0)
    assert state(one) is BreakerState.CLOSED

    granted(one).failure(0.0)
    assert state(one) is BreakerState.OPEN
    assert one.acquire(0.0) is None


def test_a_success_ends_a_row_of_failures() -> None:
    one = breaker()
    for _ in range(4):
        granted(one).failure(0.0)
    granted(one).success(0.0)
    granted(one).failure(0.0)

    assert repr(one) == "<Breaker eu/a closed, 1 failure in a row>"


def test_opens_when_most_of_recent_calls_fail_though_never_five_in_a_row() -> None:
    one = breaker()
    for call in range(10):
        permit = granted(one)
        permit.success(0.0) if call % 5 == 0 else permit.failure(0.0)

    assert state(one) is BreakerState.OPEN


def test_failures_of_long_ago_do_not_count_towards_the_rate() -> None:
    one = breaker()
    for call in range(40):
        now = call * 4.0
        permit = granted(one, now)
        permit.failure(now) if call % 2 else permit.success(now)

    assert state(one) is BreakerState.CLOSED


def test_abandoned_permits_count_nothing() -> None:
    one = breaker()
    for _ in range(100):
        granted(one).abandon()

    assert repr(one) == "<Breaker eu/a closed, 0 failures in a row>"


def test_half_open_lets_one_of_fifty_through() -> None:
    one = opened()

    permits = [one.acquire(1.05) for _ in range(50)]

    assert [permit is not None for permit in permits].count(True) == 1
    assert repr(one) == "<Breaker eu/a half-open, one probe under way>"


def test_a_probe_that_succeeds_closes_it() -> None:
    one = opened()
    granted(one, 1.05).success(1.35)

    assert state(one) is BreakerState.CLOSED


def test_a_probe_that_fails_opens_it_for_twice_as_long_from_then_on() -> None:
    one = opened()
    granted(one, 1.05).failure(1.35)

    assert one.probes_at == pytest.approx(1.35 + 2.0)
    assert one.acquire(3.3) is None
    assert one.acquire(3.4) is not None


def test_a_probe_that_is_abandoned_makes_room_for_the_next() -> None:
    one = opened()
    granted(one, 1.05).abandon()

    assert state(one) is BreakerState.HALF_OPEN
    assert granted(one, 1.1).is_probe


def test_a_sign_of_life_ends_a_probe_and_the_attempt_still_counts_later() -> None:
    one = opened(replace(POLICY, consecutive_failures=1))
    permit = granted(one, 1.05)
    permit.alive(1.1)
    assert state(one) is BreakerState.CLOSED

    permit.failure(9.0)
    assert state(one) is BreakerState.OPEN


def test_a_sign_of_life_of_an_ordinary_attempt_counts_nothing() -> None:
    one = breaker()
    for _ in range(4):
        granted(one).failure(0.0)
    granted(one).alive(0.0)

    assert repr(one) == "<Breaker eu/a closed, 4 failures in a row>"


def test_one_attempt_is_one_successful_probe() -> None:
    one = opened(replace(POLICY, probe_successes=2))
    permit = granted(one, 1.05)
    permit.alive(1.1)
    permit.success(1.2)
    assert state(one) is BreakerState.HALF_OPEN

    granted(one, 1.3).success(1.4)
    assert state(one) is BreakerState.CLOSED


def test_results_of_calls_begun_before_it_opened_count_nothing() -> None:
    one = breaker()
    late_success, late_failure = granted(one), granted(one)
    for _ in range(5):
        granted(one).failure(0.0)
    before = repr(one)

    late_success.success(0.5)
    late_failure.failure(0.6)

    assert repr(one) == before


def test_an_outcome_is_counted_once() -> None:
    one = breaker()
    permit = granted(one)
    for _ in range(9):
        permit.failure(0.0)

    assert repr(one) == "<Breaker eu/a closed, 1 failure in a row>"


def test_a_permit_left_unsettled_in_a_with_block_is_abandoned() -> None:
    one = opened()
    with granted(one, 1.05):
        assert one.acquire(1.05) is None

    assert one.acquire(1.06) is not None


def test_times_open_double_up_to_the_cap() -> None:
    one = opened()
    waits = []
    for _ in range(8):
        now = one.probes_at
        assert now is not None
        granted(one, now).failure(now)
        waits.append((one.probes_at or 0.0) - now)

    assert waits == pytest.approx([2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0, 30.0])


def test_times_open_are_shortened_at_random_by_half_at_most() -> None:
    waits = [opened(BreakerPolicy(), seed=seed).probes_at for seed in range(200)]
    known = [wait for wait in waits if wait is not None]

    assert len(set(known)) == 200
    assert 0.5 <= min(known) < 0.51
    assert 0.99 < max(known) <= 1.0


def test_an_endpoint_that_flaps_waits_longer_each_time() -> None:
    one = opened()
    granted(one, 1.0).success(1.0)
    for _ in range(5):
        granted(one, 2.0).failure(2.0)

    assert one.probes_at == pytest.approx(2.0 + 2.0)


def test_an_endpoint_that_stayed_well_for_a_window_starts_again_at_the_base() -> None:
    one = opened()
    granted(one, 1.0).success(1.0)
    for _ in range(5):
        granted(one, 12.0).failure(12.0)

    assert one.probes_at == pytest.approx(12.0 + 1.0)


def test_an_early_probe_is_still_only_one() -> None:
    one = opened()

    assert one.acquire(0.1, early=True) is not None
    assert one.acquire(0.1, early=True) is None


def test_each_change_is_told_once_and_after_it_has_happened() -> None:
    seen: list[str] = []
    one = Breaker("eu/a", replace(POLICY, consecutive_failures=1), Random(1), changed=lambda _: seen.append(repr(one)))
    granted(one).failure(0.0)
    granted(one, 1.0).success(1.0)

    assert seen == [
        "<Breaker eu/a open, probe at 1.000, opening 1>",
        "<Breaker eu/a half-open, no probe under way>",
        "<Breaker eu/a closed, 0 failures in a row>",
    ]


@pytest.mark.parametrize("step_s", [-3600.0, 3600.0], ids=["an hour back", "an hour on"])
def test_a_step_of_the_wall_clock_changes_nothing(step_s: float) -> None:
    # pybreaker notes when it opened by the wall clock, and by itself would wait by it.
    one = opened()
    one._machine._state_storage.opened_at = datetime.now(UTC) + timedelta(seconds=step_s)

    assert not one.admits(0.9)
    granted(one, 1.0).success(1.0)
    assert state(one) is BreakerState.CLOSED
