"""Any interleaving of calls, outcomes and time leaves the breaker sound."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from inferwire.policy.breaker import Breaker, BreakerState, Permit
from inferwire.settings import BreakerPolicy

LEGAL = {
    BreakerState.CLOSED: {BreakerState.OPEN},
    BreakerState.OPEN: {BreakerState.HALF_OPEN},
    BreakerState.HALF_OPEN: {BreakerState.OPEN, BreakerState.CLOSED},
}


class BreakerMachine(RuleBasedStateMachine):
    """A fleet of calls against one breaker under an injected clock."""

    @initialize(seed=st.integers(0, 1_000), probe_successes=st.integers(1, 2))
    def begin(self, seed: int, probe_successes: int) -> None:
        self.policy = BreakerPolicy(consecutive_failures=2, min_calls=3, probe_successes=probe_successes)
        self.now = 1_000.0
        self.states = [BreakerState.CLOSED]
        self.breaker = Breaker("eu/a", self.policy, Random(seed), changed=self.states.append)
        self.permits: list[Permit] = []
        self.probes: list[Permit] = []

    @rule(seconds=st.sampled_from([0.0, 0.01, 0.3, 1.0, 5.0, 40.0]))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds

    @rule(early=st.booleans())
    def acquire(self, early: bool) -> None:
        admits, state, probes_at = (
            self.breaker.admits(self.now, early=early),
            self.breaker.state,
            self.breaker.probes_at,
        )

        permit = self.breaker.acquire(self.now, early=early)

        assert (permit is not None) == admits
        assert admits or state is not BreakerState.CLOSED
        if probes_at is not None and not early:
            assert admits == (self.now >= probes_at)
        if permit is not None:
            self.permits.append(permit)
            if self.breaker.state is BreakerState.HALF_OPEN:
                self.probes = [*self.probes_under_way(), permit]

    @rule(outcome=st.sampled_from(["success", "failure", "failure", "abandon"]))
    def settle_the_newest(self, outcome: str) -> None:
        if self.permits:
            self.settle(self.permits[-1], outcome)

    @rule(number=st.integers(0, 15), outcome=st.sampled_from(["alive", "success", "failure", "abandon"]))
    def settle_any(self, number: int, outcome: str) -> None:
        """A stream shows life before its end; calls end in any order; a careless caller settles twice."""
        if self.permits:
            self.settle(self.permits[number % len(self.permits)], outcome)

    def settle(self, permit: Permit, outcome: str) -> None:
        before = (self.breaker.generation, self.breaker.probe, repr(self.breaker))
        is_stale = permit.generation != self.breaker.generation or permit.is_settled
        permit.abandon() if outcome == "abandon" else getattr(permit, outcome)(self.now)
        if permit in self.probes:
            self.probes.remove(permit)
        if is_stale:
            assert (self.breaker.generation, self.breaker.probe, repr(self.breaker)) == before

    def probes_under_way(self) -> list[Permit]:
        """Permits of this half-open time that showed neither life nor an end, as counted here."""
        return [permit for permit in self.probes if permit.generation == self.breaker.generation]

    @invariant()
    def is_sound(self) -> None:
        probes = self.probes_under_way()
        assert len(probes) <= 1
        assert [permit for permit in self.permits if permit.is_probe] == probes
        if self.breaker.probes_at is not None:
            assert self.breaker.probes_at <= self.now + self.policy.open_max_s

    @invariant()
    def every_change_is_legal_and_told(self) -> None:
        assert self.states[-1] is self.breaker.state
        assert len(self.states) == self.breaker.generation + 1
        assert all(after in LEGAL[before] for before, after in zip(self.states, self.states[1:], strict=False))

    def teardown(self) -> None:
        """No permit leaks: when all are settled and time has passed, the endpoint is tried again."""
        if not hasattr(self, "breaker"):
            return
        for permit in self.permits:
            permit.abandon()
        assert self.breaker.acquire(self.now + self.policy.open_max_s) is not None


TestBreakerMachine = BreakerMachine.TestCase
TestBreakerMachine.settings = settings(max_examples=900, stateful_step_count=14, deadline=None)
TestBreakerMachine.pytestmark = [pytest.mark.timeout(300)]  # type: ignore[attr-defined]
