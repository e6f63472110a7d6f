"""Whatever is admitted, refused, ended or cancelled, and when: no limit is ever exceeded, no token counted twice."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import NamedTuple

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from inferwire_server.domain.errors import QuotaExceeded
from inferwire_server.domain.generation import Priority
from inferwire_server.security.quota import Demand, Limit, Quota, Work
from inferwire_server.security.quotas import QuotaLedger, Reservation

from tests.server.security.quota_driving import Notes, demand

TENANTS = ("a", "b")
MINUTE_S = 60.0
WEEK_S = 7 * 24 * 3600.0
LONGEST_S = MINUTE_S * 1.001 + 1e-5
"""A window's grain is a thousandth of it."""
LIMITS = st.one_of(st.none(), st.integers(1, 12))


class Paid(NamedTuple):
    """A prompt that was paid, of a stream that broke off."""

    at: float
    free: int = 3


@dataclass
class Admitted:
    """One request as the model of the ledger sees it."""

    tenant: str
    demand: Demand
    reservation: Reservation
    at: float
    month: int
    tokens: int
    prompt_tokens: int
    paid_before: Paid | None = None
    """Its prompt, by another one."""
    requests: int = 1
    is_open: bool = True
    has_started: bool = False


class QuotaMachine(RuleBasedStateMachine):
    """Two tenants under the same small quota."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.admitted: list[Admitted] = []
        self.left_off: dict[tuple[str, Work], Paid | None] = {}
        """None while a request holds it that goes on."""
        self.works = 0

    @initialize(
        concurrent=LIMITS,
        requests=LIMITS,
        tokens=st.one_of(st.none(), st.integers(20, 300)),
        monthly=st.one_of(st.none(), st.integers(100, 2000)),
    )
    def configure(self, concurrent: int | None, requests: int | None, tokens: int | None, monthly: int | None) -> None:
        self.quota = Quota(
            concurrent_requests=concurrent,
            requests_per_minute=requests,
            tokens_per_minute=tokens,
            monthly_tokens=monthly,
            priorities=frozenset({Priority.STANDARD}),
        )
        self.notes = Notes()
        self.ledger = QuotaLedger(lambda _: self.quota, self.notes)

    @property
    def month(self) -> int:
        return datetime.fromtimestamp(self.now, UTC).month

    @rule(
        tenant=st.sampled_from(TENANTS),
        prompt=st.integers(1, 100),
        output=st.integers(1, 100),
        resumes=st.integers(0, 3),
    )
    def arrive(self, tenant: str, prompt: int, output: int, resumes: int) -> None:
        waiting = self.works_of(tenant)
        self.ask(tenant, demand(prompt, output, resumes=waiting[-resumes % len(waiting)] if resumes else None))

    @rule(tenant=st.sampled_from(TENANTS), times=st.integers(1, 9), pause_s=st.sampled_from([0.0, 1.0, 250.0]))
    def break_off_and_go_on(self, tenant: str, times: int, pause_s: float) -> None:
        for _ in range(times):
            each = self.ask(tenant, demand(1, 1, resumes=self.works_of(tenant)[-1]))
            if each is not None:
                self.finish(each, 0, has_started=True, is_whole=False)
            self.now += pause_s

    def works_of(self, tenant: str) -> list[Work | None]:
        """What may be gone on from, the latest one last; None is nothing."""
        return [None, *(work for owner, work in self.left_off if owner == tenant)]

    def ask(self, tenant: str, wanted: Demand) -> Admitted | None:
        paid = self.paid_before(tenant, wanted)
        tokens = wanted.output_tokens + (0 if paid else wanted.prompt_tokens)
        try:
            reservation = self.ledger.reserve(tenant, wanted, now=self.now, wall=self.now)
        except QuotaExceeded as refusal:
            self.check_refusal(tenant, wanted, tokens, refusal)
            return None
        each = Admitted(
            tenant, wanted, reservation, self.now, self.month, tokens, tokens - wanted.output_tokens, paid_before=paid
        )
        self.admitted.append(each)
        if wanted.resumes is not None:
            self.left_off[tenant, wanted.resumes] = None
        return each

    def paid_before(self, tenant: str, wanted: Demand) -> Paid | None:
        paid = None if wanted.resumes is None else self.left_off.get((tenant, wanted.resumes))
        return paid if paid is not None and self.now < paid.at + 600.0 else None

    def check_refusal(self, tenant: str, wanted: Demand, tokens: int, refusal: QuotaExceeded) -> None:
        assert self.exceeded(tenant, tokens, LONGEST_S), "refused without need"
        hint_s = refusal.retry_after_s
        if hint_s is None:
            assert any(most is not None and tokens > most for most in self.token_limits)
        elif refusal.quota != Limit.CONCURRENT_REQUESTS:
            wanted = replace(wanted, resumes=None, prompt_tokens=tokens - wanted.output_tokens)
            limit = self.still_refused(tenant, wanted, self.now + hint_s)
            assert limit in (None, Limit.CONCURRENT_REQUESTS), "the hint came too soon"
            if hint_s > 0.003:
                assert self.still_refused(tenant, wanted, self.now + hint_s - 0.002) is not None, "it came too late"

    @property
    def token_limits(self) -> tuple[int | None, int | None]:
        return self.quota.tokens_per_minute, self.quota.monthly_tokens

    def still_refused(self, tenant: str, wanted: Demand, at: float) -> str | None:
        try:
            copy.deepcopy(self.ledger).reserve(tenant, wanted, now=at, wall=at)
        except QuotaExceeded as refusal:
            return refusal.quota
        return None

    @precondition(lambda self: any(each.is_open for each in self.admitted))
    @rule(data=st.data(), used=st.integers(0, 100), has_started=st.booleans(), is_whole=st.booleans())
    def end(self, data: st.DataObject, used: int, has_started: bool, is_whole: bool) -> None:
        each = data.draw(st.sampled_from([each for each in self.admitted if each.is_open]))
        used = min(used, each.demand.output_tokens) if has_started else 0
        self.finish(each, used, has_started=has_started, is_whole=is_whole)

    def finish(self, each: Admitted, used: int, *, has_started: bool, is_whole: bool) -> None:
        self.works += 1
        work = None if is_whole or not has_started else each.demand.resumes or (f"job-{self.works}", b"digest")
        for _ in range(2):
            each.reservation.settle(output_tokens=used, has_started=has_started, now=self.now, left_off=work)
        each.is_open, each.has_started = False, has_started
        each.tokens = used + each.prompt_tokens * has_started
        if not has_started:
            self.give_payment_back(each)
        elif work is not None:
            paid = each.paid_before
            self.keep(each.tenant, work, Paid(self.now) if paid is None else Paid(paid.at, paid.free - 1))

    def give_payment_back(self, each: Admitted) -> None:
        if each.paid_before is not None and each.demand.resumes is not None:
            self.keep(each.tenant, each.demand.resumes, each.paid_before)

    def keep(self, tenant: str, work: Work, paid: Paid) -> None:
        known = self.left_off.get((tenant, work))
        if paid.free and (known is None or known < paid):
            self.left_off[tenant, work] = paid

    @precondition(lambda self: any(each.is_open for each in self.admitted))
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        each = data.draw(st.sampled_from([each for each in self.admitted if each.is_open]))
        each.reservation.cancel(self.now)
        each.is_open, each.tokens, each.requests = False, 0, 0
        self.give_payment_back(each)

    @rule(seconds=st.one_of(st.floats(0.0, 0.2), st.floats(0.0, 40.0), st.sampled_from([59.99, 60.0, 60.06, WEEK_S])))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    def exceeded(self, tenant: str, more_tokens: int, span_s: float) -> bool:
        """Whether one more request would exceed a limit, by every admission of the last `span_s` seconds."""
        mine = [each for each in self.admitted if each.tenant == tenant]
        recent = [each for each in mine if each.at > self.now - span_s]
        quota = self.quota
        pairs = (
            (quota.concurrent_requests, sum(each.is_open for each in mine) + 1),
            (quota.requests_per_minute, sum(each.requests for each in recent) + 1),
            (quota.tokens_per_minute, sum(each.tokens for each in recent) + more_tokens),
            (quota.monthly_tokens, sum(each.tokens for each in mine if each.month == self.month) + more_tokens),
        )
        return any(most is not None and held > most for most, held in pairs)

    @invariant()
    def limits_hold(self) -> None:
        for tenant in TENANTS:
            mine = [each for each in self.admitted if each.tenant == tenant]
            recent = [each for each in mine if each.at > self.now - MINUTE_S]
            assert sum(each.is_open for each in mine) <= (self.quota.concurrent_requests or len(mine))
            assert sum(each.requests for each in recent) <= (self.quota.requests_per_minute or len(recent))
            if self.quota.tokens_per_minute is not None:
                assert sum(each.tokens for each in recent) <= self.quota.tokens_per_minute

    @invariant()
    def the_budget_is_what_was_used(self) -> None:
        for tenant, spent, budget in self.ledger.budgets(self.now):
            mine = [each for each in self.admitted if (each.tenant, each.month) == (tenant, self.month)]
            assert spent == sum(each.tokens for each in mine) <= budget

    @invariant()
    def prompts_are_paid_at_least_every_fourth_time(self) -> None:
        for tenant, work in self.left_off:
            starts = [
                each
                for each in self.admitted
                if (each.tenant, each.demand.resumes) == (tenant, work) and (each.is_open or each.has_started)
            ]
            paid = 1 + sum(each.prompt_tokens > 0 for each in starts)
            assert 1 + len(starts) <= 4 * paid


TestQuotaMachine = QuotaMachine.TestCase
TestQuotaMachine.settings = settings(stateful_step_count=30)
