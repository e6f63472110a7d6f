"""A wedged worker is given up, a long step is not, and a stalled watcher blames nobody."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from inferwire_server.engines.openvino.vigilance import (
    HEARTBEAT_S,
    MIN_SILENCE_S,
    PATIENCE,
    SILENCE_PER_STEP,
    RestartBackoff,
    SilenceWatch,
)


def seconds_until_given_up(watch: SilenceWatch, start: float, *, cpu_share: float | None = None) -> float:
    now = start
    while not watch.tick(now := now + HEARTBEAT_S, None if cpu_share is None else cpu_share * now):
        assert now < start + 1000
    return now - start


def test_a_worker_that_never_speaks_is_given_up_after_two_seconds() -> None:
    watch = SilenceWatch([0.01] * 50, now=100.0)

    assert MIN_SILENCE_S < seconds_until_given_up(watch, 100.0) <= MIN_SILENCE_S + HEARTBEAT_S


def test_a_worker_that_uses_no_processor_time_is_not_waited_for_any_longer() -> None:
    watch = SilenceWatch([], now=100.0)

    assert seconds_until_given_up(watch, 100.0, cpu_share=0.0) <= MIN_SILENCE_S + HEARTBEAT_S


@pytest.mark.parametrize("cpu_share", [0.1, 2.0], ids=["starved", "spinning"])
def test_a_worker_that_uses_processor_time_gets_more_patience_but_not_for_ever(cpu_share: float) -> None:
    watch = SilenceWatch([], now=100.0)

    waited = seconds_until_given_up(watch, 100.0, cpu_share=cpu_share)

    assert 0.8 * PATIENCE * MIN_SILENCE_S < waited <= PATIENCE * (MIN_SILENCE_S + HEARTBEAT_S)


def test_long_steps_stretch_the_bound_tenfold() -> None:
    watch = SilenceWatch([], now=0.0)
    for _ in range(20):
        watch.heard(1.5)

    assert watch.bound_s == pytest.approx(SILENCE_PER_STEP * 1.5)
    assert seconds_until_given_up(watch, 0.0) > 15.0


def test_one_long_step_among_a_thousand_does_not_stretch_the_bound() -> None:
    watch = SilenceWatch([*[0.01] * 1000, 60.0], now=0.0)

    assert watch.bound_s == MIN_SILENCE_S


def test_a_heartbeat_starts_the_count_again() -> None:
    watch = SilenceWatch([], now=0.0)

    for quarter in range(400):
        assert not watch.tick(quarter / 4, None)
        watch.heard()


def test_a_stalled_watcher_counts_its_own_absence_as_two_ticks() -> None:
    watch = SilenceWatch([], now=0.0)

    assert not watch.tick(3600.0, None)
    assert not watch.tick(3600.0 + HEARTBEAT_S, None)


@given(unit=st.floats(0, 1), losses=st.integers(1, 60))
def test_delays_stay_between_half_and_all_of_the_doubled_ceiling(unit: float, losses: int) -> None:
    backoff = RestartBackoff(first_s=0.2, cap_s=30.0)

    delays = [backoff.delay_after_loss(0.0, unit) for _ in range(losses)]

    ceilings = [min(30.0, 0.2 * 2**count) for count in range(losses)]
    assert all(ceiling / 2 <= delay <= ceiling for delay, ceiling in zip(delays, ceilings, strict=True))


def test_a_worker_that_served_for_a_minute_resets_the_delay() -> None:
    backoff = RestartBackoff(first_s=0.2)
    for _ in range(6):
        backoff.delay_after_loss(1.0, 1.0)

    assert backoff.delay_after_loss(59.9, 1.0) > 1.0
    assert backoff.delay_after_loss(60.0, 1.0) == pytest.approx(0.2)
