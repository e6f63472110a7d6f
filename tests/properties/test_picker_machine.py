"""Whatever has happened to endpoints and to a call, an attempt is placed where it may go and nowhere else."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from inferwire.errors import LocalReason
from inferwire.policy.breaker import BreakerState, Permit
from inferwire.policy.endpoint import EndpointState
from inferwire.policy.picker import Picked, Picker, Refused
from inferwire.policy.visits import Visits
from inferwire.regions import Regions
from inferwire.settings import BreakerPolicy, ClientConfig, FailoverPolicy, Region, ThrottlePolicy

NAMES = ("eu", "us", "cn")
NUMBERS = st.integers(0, 8)
LISTED = tuple(
    Region(name=name, priority=priority, endpoints=(f"10.{index}.0.1:1", f"10.{index}.0.2:1"))
    for index, (name, priority) in enumerate(zip(NAMES, (0, 1, 1), strict=True))
)


class PickerMachine(RuleBasedStateMachine):
    """One call after another over three regions, of which some are allowed."""

    @initialize(seed=st.integers(0, 1_000), allowed=st.sets(st.sampled_from(NAMES), min_size=1))
    def begin(self, seed: int, allowed: set[str]) -> None:
        failover = FailoverPolicy(panic_share=0.5)
        config = ClientConfig(regions=LISTED, allowed_regions=tuple(sorted(allowed)), failover=failover)
        rng = Random(seed)
        self.allowed = allowed
        self.regions = Regions(config)
        self.picker = Picker(failover, rng)
        self.endpoints = [
            EndpointState(
                one.key,
                region=one.region,
                priority=one.priority,
                breaker=BreakerPolicy(consecutive_failures=2),
                throttle=ThrottlePolicy(),
                rng=rng,
            )
            for one in self.regions.endpoints
        ]
        self.now = 100.0
        self.visits = Visits()
        self.returns: dict[str, float | None] = {}
        self.permits: list[tuple[EndpointState, Permit]] = []

    def endpoint(self, number: int) -> EndpointState:
        return self.endpoints[number % len(self.endpoints)]

    @rule(seconds=st.sampled_from([0.1, 1.0, 30.0]))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds

    @rule(number=NUMBERS, says=st.sampled_from([None, True, False]))
    def hear_health(self, number: int, says: bool | None) -> None:
        self.endpoint(number).is_serving = says

    @rule(number=NUMBERS)
    def break_down(self, number: int) -> None:
        one = self.endpoint(number)
        for _ in range(2):
            if (permit := one.breaker.acquire(self.now)) is not None:
                permit.failure(self.now)

    @rule(number=NUMBERS)
    def push_back(self, number: int) -> None:
        self.endpoint(number).push_back(1.0, self.now)

    @rule()
    def refuse_most_everywhere(self) -> None:
        for one in self.endpoints:
            for _ in range(1_000 if one.throttle.skip_probability(self.now) == 0.0 else 0):
                one.throttle.refused(self.now)

    @rule(number=NUMBERS, returns_in=st.sampled_from([None, 0.0, 0.5]))
    def fail_this_call(self, number: int, returns_in: float | None) -> None:
        one = self.endpoint(number)
        returns_at = None if returns_in is None else self.now + returns_in
        self.returns[one.key] = returns_at
        self.visits.failed(one.key, one.region, is_fault=True, leaves_region=False, returns_at=returns_at)

    @rule()
    def begin_another_call(self) -> None:
        self.visits, self.returns = Visits(), {}

    @rule(number=NUMBERS)
    def settle_a_permit(self, number: int) -> None:
        if self.permits:
            one, permit = self.permits.pop(number % len(self.permits))
            permit.success(self.now)
            one.end()

    @rule(may_return=st.booleans())
    def pick(self, may_return: bool) -> None:
        healthy = {one.region: 0 for one in self.endpoints}
        for one in self.endpoints:
            healthy[one.region] += one.is_healthy
        self.regions.observe(healthy, self.now)
        untroubled = self.untroubled()
        shares = self.regions.shares(self.now)

        answer = self.picker.pick(self.endpoints, shares, self.visits, self.now, may_return=may_return)

        if isinstance(answer, Refused):
            self.check_refusal(answer, may_return=may_return)
        else:
            self.check_pick(answer, untroubled, shares, may_return=may_return)

    def untroubled(self) -> list[EndpointState]:
        """Endpoints that nothing speaks against, for a call that has failed nowhere."""
        return [
            one
            for one in self.endpoints
            if one.is_healthy
            and not self.returns
            and not one.pushes_back(self.now)
            and one.throttle.skip_probability(self.now) == 0.0
        ]

    def check_pick(
        self, picked: Picked, untroubled: list[EndpointState], shares: Mapping[str, float], *, may_return: bool
    ) -> None:
        one = picked.endpoint
        assert one.region in self.allowed
        assert one.is_serving is not False
        if one.key in self.returns:
            returns_at = self.returns[one.key]
            assert may_return
            assert returns_at is not None
            assert self.now >= returns_at
        full = [other.priority for other in untroubled if shares[other.region] == 1.0]
        is_probe = picked.permit.is_probe and one.is_serving
        assert is_probe or not full or one.priority <= min(full)
        one.begin()
        self.permits.append((one, picked.permit))

    def check_refusal(self, refusal: Refused, *, may_return: bool) -> None:
        """Every allowed region has its reason, and no endpoint that could have been used was passed over."""
        assert set(refusal.regions) == self.allowed
        if LocalReason.THROTTLED in refusal.regions.values():
            assert not self.returns
            return
        for one in self.endpoints:
            returns_at = self.returns.get(one.key)
            is_open_to_call = one.key not in self.returns or (
                may_return and returns_at is not None and self.now >= returns_at
            )
            assert not (is_open_to_call and one.is_serving is not False and one.breaker.admits(self.now))

    @invariant()
    def never_two_probes_on_one_endpoint(self) -> None:
        probes = [
            one.key
            for one, permit in self.permits
            if one.breaker.state is BreakerState.HALF_OPEN and permit.generation == one.breaker.generation
        ]
        assert len(probes) == len(set(probes))

    @invariant()
    def only_allowed_regions_exist(self) -> None:
        assert {one.region for one in self.endpoints} == self.allowed

    def teardown(self) -> None:
        """No permit leaks: with every attempt settled and time gone by, each endpoint takes calls again."""
        for one, permit in getattr(self, "permits", []):
            permit.abandon()
            one.end()
        for one in getattr(self, "endpoints", []):
            assert one.outstanding == 0.0
            assert one.breaker.state is BreakerState.CLOSED or one.breaker.admits(self.now + 30.0)


TestPickerMachine = PickerMachine.TestCase
TestPickerMachine.settings = settings(max_examples=700, stateful_step_count=10, deadline=None)
TestPickerMachine.pytestmark = [pytest.mark.timeout(300)]  # type: ignore[attr-defined]
