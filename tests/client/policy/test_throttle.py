"""Less traffic for an endpoint that refuses most of it."""

from __future__ import annotations

import pytest
from inferwire.policy.throttle import AdaptiveThrottle
from inferwire.settings import ThrottlePolicy


def after(accepted: int, refused: int, policy: ThrottlePolicy | None = None) -> AdaptiveThrottle:
    throttle = AdaptiveThrottle(policy or ThrottlePolicy())
    for _ in range(accepted):
        throttle.accepted(0.0)
    for _ in range(refused):
        throttle.refused(0.0)
    return throttle


@pytest.mark.parametrize(
    ("accepted", "refused", "probability"),
    [(0, 0, 0.0), (100, 0, 0.0), (50, 50, 0.0), (25, 75, 50 / 101), (0, 100, 100 / 101)],
)
def test_the_chance_to_pass_by_follows_the_formula(accepted: int, refused: int, probability: float) -> None:
    assert after(accepted, refused).skip_probability(0.0) == pytest.approx(probability)


def test_a_few_refusals_prove_nothing() -> None:
    assert after(0, 9).skip_probability(0.0) == 0.0
    assert after(0, 10).skip_probability(0.0) > 0.9


def test_old_answers_are_forgotten() -> None:
    throttle = after(0, 40)

    assert throttle.skip_probability(5.0) == pytest.approx(20 / 21)
    assert throttle.skip_probability(15.0) == 0.0


def test_a_recovery_is_believed_within_seconds() -> None:
    throttle = after(0, 30)
    for tenth in range(30):
        throttle.accepted(tenth / 10)

    assert throttle.skip_probability(3.0) == 0.0


def test_its_repr_shows_the_balance() -> None:
    assert repr(after(1, 3)) == "<AdaptiveThrottle 1.0 of 4.0 accepted>"
