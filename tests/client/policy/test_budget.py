"""The bound on all retries together."""

from __future__ import annotations

import pytest
from inferwire.policy.budget import RetryBudget
from inferwire.settings import BudgetPolicy


def granted(budget: RetryBudget, tries: int, now: float = 0.0) -> int:
    return sum(budget.withdraw(now) for _ in range(tries))


def test_a_new_client_has_its_reserve() -> None:
    assert granted(RetryBudget(BudgetPolicy(reserve=10)), 50) == 10


def test_ten_requests_earn_one_retry() -> None:
    budget = RetryBudget(BudgetPolicy(reserve=0))
    for _ in range(200):
        budget.deposit()

    assert granted(budget, 50) == 20


def test_earnings_are_kept_up_to_the_cap() -> None:
    budget = RetryBudget(BudgetPolicy(reserve=0, cap=5))
    for _ in range(200):
        budget.deposit()

    assert granted(budget, 50) == 5


def test_the_reserve_refills_over_its_window() -> None:
    budget = RetryBudget(BudgetPolicy(reserve=100, window_s=10.0))
    assert granted(budget, 200) == 100

    assert granted(budget, 200, now=1.0) == 10
    assert granted(budget, 200, now=60.0) == 100


@pytest.mark.parametrize("error_rate", [0.0, 0.01, 0.1, 0.5, 1.0])
def test_attempts_stay_within_a_tenth_and_the_reserve_at_every_error_rate(error_rate: float) -> None:
    """10,000 requests at one instant, each of which would retry three times as often as it fails."""
    budget = RetryBudget(BudgetPolicy())
    attempts = 0
    for number in range(10_000):
        budget.deposit()
        fails = (number * 7919 % 10_000) < error_rate * 10_000
        attempts += 1 + (granted(budget, 3) if fails else 0)

    assert attempts <= 10_000 * 1.1 + 100


def test_its_repr_shows_what_is_left() -> None:
    budget = RetryBudget(BudgetPolicy(reserve=3))
    budget.deposit()
    budget.withdraw(0.0)

    assert repr(budget) == "<RetryBudget 0.1 earned, 2.0 of 3 in reserve>"
