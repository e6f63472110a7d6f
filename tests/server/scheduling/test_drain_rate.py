"""How fast a full server works its queue off."""

import pytest
from inferwire_server.scheduling.drain_rate import LONGEST_HINT_S, SHORTEST_HINT_S, UNKNOWN_HINT_S, DrainRate


def measured(*, every_s: float, until_s: float = 60.0, waiting: int = 5) -> DrainRate:
    rate = DrainRate()
    for number in range(int(until_s / every_s) + 1):
        rate.released(number * every_s, waiting=waiting)
    return rate


def test_is_unknown_before_anything_was_released() -> None:
    assert DrainRate().per_second(1.0) is None
    assert DrainRate().retry_after_s(1.0, 10) == UNKNOWN_HINT_S


def test_is_the_rate_of_releases_while_others_wait() -> None:
    assert measured(every_s=0.25).per_second(60.0) == pytest.approx(4.0, rel=0.01)


def test_quiet_times_do_not_make_the_server_look_slow() -> None:
    rate = measured(every_s=0.25)
    rate.released(60.1, waiting=0)
    rate.released(4000.0, waiting=0)

    assert rate.per_second(4000.0) == pytest.approx(4.0, rel=0.01)


def test_falls_while_a_busy_server_releases_nothing() -> None:
    rate = measured(every_s=0.25)

    stuck = rate.per_second(120.0)

    assert stuck is not None
    assert stuck < 1.0


def test_follows_a_change_of_speed() -> None:
    rate = measured(every_s=0.25)
    for second in range(61, 121):
        rate.released(float(second), waiting=5)

    assert rate.per_second(120.0) == pytest.approx(1.0, rel=0.05)


def test_hints_stay_within_their_bounds() -> None:
    rate = measured(every_s=0.25)

    assert rate.retry_after_s(60.0, 8) == pytest.approx(2.0, rel=0.01)
    assert rate.retry_after_s(60.0, 0.01) == SHORTEST_HINT_S
    assert rate.retry_after_s(60.0, 1e6) == LONGEST_HINT_S
