"""All policies together in virtual time: calls against servers that answer as a test says, without a network."""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from random import Random

from inferwire.errors import Code, Reason
from inferwire.policy.budget import RetryBudget
from inferwire.policy.deadline import Deadline
from inferwire.policy.decision import BreakerOutcome, CallProgress, Decision, Limits, Move, Step, decide
from inferwire.policy.endpoint import EndpointState
from inferwire.policy.failure import Failure, FailureKind
from inferwire.policy.picker import Picked, Picker, Refused
from inferwire.policy.visits import Visits
from inferwire.regions import Regions
from inferwire.settings import ClientConfig

Answer = Callable[[float], Failure | None]
"""What a server says to an attempt that reaches it at a time; None is success."""
Waits = Generator[float, None, None]
"""Yields the moments until which it sleeps."""

LOST = Failure(kind=FailureKind.CONNECTION, code=Code.UNAVAILABLE)
LOST_IN_MID_STREAM = Failure(kind=FailureKind.CONNECTION, code=Code.UNAVAILABLE, started=True)


def refusal(reason: Reason, hint_s: float) -> Failure:
    """A refusal with a hint."""
    code = Code.RESOURCE_EXHAUSTED if reason is Reason.OVERLOADED else Code.UNAVAILABLE
    return Failure(kind=FailureKind.STATUS, code=code, reason=reason, hint_s=hint_s)


@dataclass
class Tally:
    """What came of all calls."""

    attempts: list[tuple[float, str]] = field(default_factory=list)
    """(time, endpoint) of each attempt sent."""
    ok: int = 0
    failed: Counter[str] = field(default_factory=Counter)
    """Final failures of servers, by name."""
    refused: int = 0
    """Calls that found nowhere to go."""

    def sent_to(self, region: str, since: float = 0.0, until: float = 1e9) -> int:
        """Attempts that reached a region in a time."""
        return sum(1 for at, key in self.attempts if key.startswith(f"{region}/") and since <= at < until)


class Simulation:
    """A client's policies, its clock and the servers around it."""

    def __init__(self, config: ClientConfig, servers: dict[str, Answer], *, service_s: float = 0.01) -> None:
        self.config = config
        self.now = 0.0
        self.tally = Tally()
        self._servers = servers
        self._service_s = service_s
        self._rng = Random(5)
        self._regions = Regions(config)
        self._budget = RetryBudget(config.budget)
        self._picker = Picker(config.failover, self._rng)
        self._endpoints = [
            EndpointState(
                one.key,
                region=one.region,
                priority=one.priority,
                breaker=config.breaker,
                throttle=config.throttle,
                rng=self._rng,
            )
            for one in self._regions.endpoints
        ]
        self._sleepers: list[tuple[float, int, Waits]] = []
        self._order = itertools.count()

    def call_at(self, moment: float) -> None:
        """Let a call arrive."""
        heapq.heappush(self._sleepers, (moment, next(self._order), self._call()))

    def run(self) -> Tally:
        """Let everything happen."""
        while self._sleepers:
            self.now, _, waits = heapq.heappop(self._sleepers)
            until = next(waits, None)
            if until is not None:
                heapq.heappush(self._sleepers, (max(until, self.now), next(self._order), waits))
        return self.tally

    def _pick(self, visits: Visits, *, may_return: bool = False) -> Picked | Refused:
        healthy = Counter(one.region for one in self._endpoints if one.is_healthy)
        self._regions.observe(healthy, self.now)
        shares = self._regions.shares(self.now)
        return self._picker.pick(self._endpoints, shares, visits, self.now, may_return=may_return)

    def _call(self) -> Waits:
        limits = Limits(retry=self.config.retry, resume=self.config.resume, deadline=Deadline(self.now + 60.0))
        visits, progress = Visits(), CallProgress(is_stream=True)
        self._budget.deposit()
        pick = self._pick(visits)
        while isinstance(pick, Picked):
            self.tally.attempts.append((self.now, pick.endpoint.key))
            pick.endpoint.begin()
            failure = self._servers[pick.endpoint.key](self.now)
            yield self.now + self._service_s
            pick.endpoint.end()
            if failure is None:
                pick.permit.success(self.now)
                pick.endpoint.throttle.accepted(self.now)
                self.tally.ok += 1
                return
            decision = decide(failure, progress, limits, now=self.now, rng=self._rng)
            self._learn(pick, decision, visits)
            following = yield from self._go_on(decision, visits)
            if following is None:
                self.tally.failed[str(failure)] += 1
                return
            pick, move = following
            progress = progress.after(decision, move, self.now)
        self.tally.refused += 1

    def _learn(self, pick: Picked, decision: Decision, visits: Visits) -> None:
        endpoint, is_fault = pick.endpoint, decision.breaker is BreakerOutcome.FAILURE
        pick.permit.failure(self.now) if is_fault else pick.permit.abandon()
        if decision.feeds_throttle:
            endpoint.throttle.refused(self.now)
        if decision.pushback_s is not None:
            endpoint.push_back(decision.pushback_s, self.now)
        visits.failed(
            endpoint.key,
            endpoint.region,
            is_fault=is_fault,
            leaves_region=decision.leaves_region,
            returns_at=None if decision.back is None else self.now + decision.back.after_s,
        )

    def _go_on(self, decision: Decision, visits: Visits) -> Generator[float, None, tuple[Picked, Move] | None]:
        failed_at = self.now
        for move, may_return in ((decision.elsewhere, False), (decision.back, True)):
            if decision.step is Step.FINAL or move is None:
                continue
            yield failed_at + move.after_s
            pick = self._pick(visits, may_return=may_return)
            if isinstance(pick, Refused):
                continue
            if move.charges_budget and not self._budget.withdraw(self.now):
                pick.permit.abandon()
                return None
            return pick, move
        return None
