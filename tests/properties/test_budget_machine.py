"""Whatever the order of requests, retries and time, the budget keeps its bound."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from inferwire.policy.budget import RetryBudget
from inferwire.settings import BudgetPolicy

ROUNDING = 1e-6


class BudgetMachine(RuleBasedStateMachine):
    """Requests and retries against one budget under an injected clock."""

    @initialize(
        ratio=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
        reserve=st.integers(0, 20),
        cap=st.integers(0, 20),
        window_s=st.sampled_from([1.0, 10.0]),
    )
    def begin(self, ratio: float, reserve: int, cap: int, window_s: float) -> None:
        self.policy = BudgetPolicy(ratio=ratio, reserve=reserve, cap=cap, window_s=window_s)
        self.budget = RetryBudget(self.policy)
        self.began = self.now = 50.0
        self.requests = self.granted = 0

    @rule(seconds=st.sampled_from([0.001, 0.1, 1.0, 7.0, 100.0]))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds

    @rule(requests=st.integers(1, 30))
    def receive(self, requests: int) -> None:
        for _ in range(requests):
            self.budget.deposit()
        self.requests += requests

    @rule(tries=st.integers(1, 40))
    def retry(self, tries: int) -> None:
        available = self.budget.balance(self.now)
        granted = sum(self.budget.withdraw(self.now) for _ in range(tries))

        # A retry costs a whole token of one kind, so that up to one of each kind may be left over.
        assert min(tries, available - 2) - ROUNDING < granted <= available + ROUNDING
        self.granted += granted

    @rule(seconds=st.sampled_from([0.0, 5.0]))
    def go_back_in_time(self, seconds: float) -> None:
        """A clock that stands still or jumps back gives nothing away."""
        before = self.budget.balance(self.now)

        assert self.budget.balance(self.now - seconds) <= before + ROUNDING

    @invariant()
    def grants_no_more_than_was_earned_and_reserved(self) -> None:
        reserves = 1 + (self.now - self.began) / self.policy.window_s
        assert self.granted <= self.policy.ratio * self.requests + self.policy.reserve * reserves + ROUNDING
        assert 0.0 <= self.budget.balance(self.now) <= self.policy.cap + self.policy.reserve + ROUNDING


TestBudgetMachine = BudgetMachine.TestCase
TestBudgetMachine.settings = settings(max_examples=500, stateful_step_count=8, deadline=None)
TestBudgetMachine.pytestmark = [pytest.mark.timeout(300)]  # type: ignore[attr-defined]
