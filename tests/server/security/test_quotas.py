"""A tenant has its limits and no more, is told to the millisecond when there will be room, and pays each token once."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise

import pytest
from inferwire_server.domain.errors import QuotaExceeded
from inferwire_server.domain.generation import Priority
from inferwire_server.security.quota import UNLIMITED, Demand, Limit, Quota
from inferwire_server.security.quotas import QuotaLedger, Reservation

from tests.server.security.quota_driving import Notes, at, demand

MINUTE_S = 60.0
WORK = ("job", b"digest")
GOING_ON = demand(10, 90, resumes=WORK)


def ledger_of(quota: Quota, notes: Notes | None = None) -> QuotaLedger:
    return QuotaLedger(lambda _: quota, notes or Notes())


def reserved(ledger: QuotaLedger, wanted: Demand, now: float = 0.0, wall: float = 0.0) -> Reservation:
    return ledger.reserve("a", wanted, now=now, wall=wall)


def refused(ledger: QuotaLedger, wanted: Demand, now: float = 0.0, wall: float = 0.0) -> QuotaExceeded:
    with pytest.raises(QuotaExceeded) as caught:
        reserved(ledger, wanted, now, wall)
    return caught.value


def break_off(ledger: QuotaLedger, now: float) -> None:
    """The engine takes what goes on from `WORK` (or begins it), and the caller leaves before the first token."""
    reserved(ledger, GOING_ON, now).settle(output_tokens=0, has_started=True, now=now, left_off=WORK)


def spent(ledger: QuotaLedger) -> int:
    """Tokens of this month."""
    return sum(tokens for _, tokens, _ in ledger.budgets(0.0))


@dataclass
class Served:
    """One request of a simulated caller."""

    at: float
    amount: int


class Crowd:
    """Callers that each ask at a steady pace of their own, whatever they are told; the clock is the simulation's."""

    def __init__(self, quota: Quota, *, callers: int, interval_s: float, seed: int) -> None:
        self.ledger = ledger_of(quota)
        self.served: list[Served] = []
        self._random = random.Random(seed)
        self._interval_s = interval_s
        self._next = [self._random.uniform(0, interval_s) for _ in range(callers)]
        self._ends: list[tuple[float, Callable[[float], None]]] = []

    def run(self, until_s: float, check: Callable[[float], None]) -> None:
        while (now := min(self._next)) < until_s:
            caller = self._next.index(now)
            self._next[caller] = now + self._interval_s * self._random.uniform(0.9, 1.1)
            self._end_those_before(now)
            self._ask(now)
            check(now)

    def _ask(self, now: float) -> None:
        wanted = demand(self._random.randint(100, 200), self._random.randint(200, 400))
        try:
            reservation = reserved(self.ledger, wanted, now)
        except QuotaExceeded:
            return
        output = self._random.randint(0, wanted.output_tokens)
        has_started = self._random.random() < 0.9
        each = Served(now, wanted.prompt_tokens + wanted.output_tokens)
        self.served.append(each)

        def end(when: float) -> None:
            reservation.settle(output_tokens=output * has_started, has_started=has_started, now=when)
            each.amount = (wanted.prompt_tokens + output) * has_started

        self._ends.append((now + self._random.uniform(0.2, 4.0), end))

    def _end_those_before(self, now: float) -> None:
        due = sorted((each for each in self._ends if each[0] <= now), key=lambda each: each[0])
        self._ends = [each for each in self._ends if each[0] > now]
        for when, end in due:
            end(when)

    def end_all(self) -> None:
        self._end_those_before(math.inf)

    def amount(self, after: float, until: float) -> int:
        """Of the requests admitted in that time: what they used, or may still use."""
        return sum(each.amount for each in self.served if after < each.at <= until)

    def number(self, after: float, until: float) -> int:
        return sum(after < each.at <= until for each in self.served)


@pytest.mark.parametrize("seed", range(3))
def test_a_hundred_callers_at_three_times_the_limit_get_all_of_it_and_never_more(seed: int) -> None:
    limit, mean_tokens = 60_000, 150 + 150
    crowd = Crowd(
        Quota(tokens_per_minute=limit), callers=100, interval_s=100 * mean_tokens * MINUTE_S / (3 * limit), seed=seed
    )

    def check(now: float) -> None:
        assert crowd.amount(now - MINUTE_S, now) <= limit

    crowd.run(6 * MINUTE_S, check)
    crowd.end_all()
    for minute in range(1, 6):
        assert 0.98 * limit <= crowd.amount(minute * MINUTE_S, (minute + 1) * MINUTE_S) <= limit


@pytest.mark.parametrize("seed", range(3))
def test_the_same_holds_for_requests(seed: int) -> None:
    limit = 300
    crowd = Crowd(Quota(requests_per_minute=limit), callers=100, interval_s=100 * MINUTE_S / (3 * limit), seed=seed)

    def check(now: float) -> None:
        assert crowd.number(now - MINUTE_S, now) <= limit

    crowd.run(6 * MINUTE_S, check)
    for minute in range(1, 6):
        assert 0.98 * limit <= crowd.number(minute * MINUTE_S, (minute + 1) * MINUTE_S) <= limit


def test_no_more_requests_are_held_at_once_than_the_limit_and_an_end_makes_room_at_once() -> None:
    ledger = ledger_of(Quota(concurrent_requests=2))
    first, _ = reserved(ledger, demand()), reserved(ledger, demand())
    error = refused(ledger, demand())
    assert (error.quota, error.limit, error.actual) == ("concurrent_requests", 2, 3)
    assert error.retry_after_s is not None
    first.settle(output_tokens=3, has_started=True, now=1.0)
    reserved(ledger, demand(), 1.0)


def test_the_hint_of_a_full_house_follows_how_long_requests_are_held() -> None:
    ledger = ledger_of(Quota(concurrent_requests=2))
    now = 0.0
    for _ in range(100):
        held = reserved(ledger, demand(), now)
        now += 8.0
        held.settle(output_tokens=1, has_started=True, now=now)
    reserved(ledger, demand(), now)
    reserved(ledger, demand(), now)
    assert refused(ledger, demand(), now).retry_after_s == pytest.approx(4.0, rel=0.01)


def test_the_hint_is_the_moment_of_the_refill() -> None:
    ledger = ledger_of(Quota(tokens_per_minute=100))
    for number, now in enumerate((0.0, 10.0, 20.0)):
        reserved(ledger, demand(20, 10 + number), now).settle(output_tokens=10 + number, has_started=True, now=now)
    hint_s = refused(ledger, demand(30, 20), 30.0).retry_after_s
    assert hint_s is not None
    assert 10.0 + MINUTE_S <= 30.0 + hint_s <= 10.0 + MINUTE_S * 1.001 + 0.001
    assert refused(ledger, demand(30, 20), 30.0 + hint_s - 0.002).quota == Limit.TOKENS_PER_MINUTE
    reserved(ledger, demand(30, 20), 30.0 + hint_s)


def test_of_several_limits_the_one_that_lasts_longest_is_named() -> None:
    ledger = ledger_of(Quota(requests_per_minute=1, monthly_tokens=50))
    wall = at(2027, 2, 28, 23)
    reserved(ledger, demand(20, 20), wall=wall)
    error = refused(ledger, demand(20, 20), wall=wall)
    assert (error.quota, error.retry_after_s) == (Limit.MONTHLY_TOKENS, 3600.0)
    assert refused(ledger, demand(5, 5), wall=wall).quota == Limit.REQUESTS_PER_MINUTE


@pytest.mark.parametrize(
    ("quota", "limit", "field"),
    [
        (Quota(max_prompt_tokens=9), Limit.MAX_PROMPT_TOKENS, ""),
        (Quota(max_output_tokens=9), Limit.MAX_OUTPUT_TOKENS, "max_output_tokens"),
        (Quota(priorities=frozenset({Priority.BATCH})), Limit.PRIORITIES, "scheduling.priority"),
        (Quota(tokens_per_minute=19), Limit.TOKENS_PER_MINUTE, ""),
        (Quota(monthly_tokens=19), Limit.MONTHLY_TOKENS, ""),
        (Quota(requests_per_minute=0), Limit.REQUESTS_PER_MINUTE, ""),
        (Quota(concurrent_requests=0), Limit.CONCURRENT_REQUESTS, ""),
    ],
)
def test_what_a_tenant_can_never_have_is_refused_without_a_hint(quota: Quota, limit: Limit, field: str) -> None:
    notes = Notes()
    error = refused(ledger_of(quota, notes), demand(10, 10))
    assert (error.quota, error.field, error.retry_after_s) == (limit, field, None)
    assert notes.refusals == [("a", limit)]


def test_what_fits_exactly_is_admitted() -> None:
    quota = Quota(
        concurrent_requests=1,
        requests_per_minute=1,
        tokens_per_minute=20,
        monthly_tokens=20,
        max_prompt_tokens=10,
        max_output_tokens=10,
        priorities=frozenset({Priority.STANDARD}),
    )
    reserved(ledger_of(quota), demand(10, 10))


def test_a_refused_request_costs_nothing() -> None:
    ledger = ledger_of(Quota(requests_per_minute=10, tokens_per_minute=100))
    for _ in range(50):
        refused(ledger, demand(200, 200))
    for _ in range(5):
        reserved(ledger, demand(10, 10))


def test_before_the_tokens_are_known_requests_and_priorities_can_be_refused_already() -> None:
    ledger = ledger_of(Quota(requests_per_minute=1, priorities=frozenset({Priority.BATCH})))
    with pytest.raises(QuotaExceeded) as caught:
        ledger.check_arrival("a", Priority.STANDARD, 0.0)
    assert caught.value.quota == Limit.PRIORITIES
    for _ in range(3):
        ledger.check_arrival("a", Priority.BATCH, 0.0)
    reserved(ledger, demand(priority=Priority.BATCH))
    with pytest.raises(QuotaExceeded) as caught:
        ledger.check_arrival("a", Priority.BATCH, 0.0)
    assert caught.value.quota == Limit.REQUESTS_PER_MINUTE
    ledger.check_arrival("b", Priority.BATCH, 0.0)


@pytest.mark.parametrize(("has_started", "output", "expected"), [(True, 4, 14), (True, 0, 10), (False, 0, 0)])
def test_in_the_end_a_request_has_cost_what_it_has_used(has_started: bool, output: int, expected: int) -> None:
    ledger = ledger_of(Quota(monthly_tokens=1000))
    held = reserved(ledger, demand(10, 90))
    assert list(ledger.budgets(0.0)) == [("a", 100, 1000)]
    for _ in range(2):
        held.settle(output_tokens=output, has_started=has_started, now=1.0)
    held.cancel(1.0)
    assert list(ledger.budgets(0.0)) == [("a", expected, 1000)]


def test_a_request_that_ends_after_its_minute_gives_back_nothing_of_another_one() -> None:
    ledger = ledger_of(Quota(tokens_per_minute=100, requests_per_minute=1))
    first = reserved(ledger, demand(10, 90), 0.0)
    second = reserved(ledger, demand(10, 90), 100.0)
    first.cancel(101.0)
    error = refused(ledger, demand(1, 1), 102.0)
    assert (error.quota, error.actual) == (Limit.TOKENS_PER_MINUTE, 102)
    second.cancel(103.0)
    reserved(ledger, demand(10, 90), 104.0)


def test_what_was_refused_for_another_reason_costs_not_even_a_request() -> None:
    ledger = ledger_of(Quota(requests_per_minute=1, tokens_per_minute=20))
    reserved(ledger, demand(10, 10)).cancel(0.0)
    reserved(ledger, demand(10, 10))


def test_a_stream_that_goes_on_pays_its_prompt_once_and_each_token_once() -> None:
    ledger = ledger_of(Quota(monthly_tokens=1000))
    work = ("job", b"digest")
    reserved(ledger, demand(10, 90)).settle(output_tokens=30, has_started=True, now=0.0, left_off=work)
    going_on = replace(demand(10, 90), output_tokens=60, resumes=work)
    reserved(ledger, going_on).settle(output_tokens=60, has_started=True, now=1.0)
    assert list(ledger.budgets(0.0)) == [("a", 100, 1000)]
    reserved(ledger, going_on).settle(output_tokens=60, has_started=True, now=2.0)
    assert list(ledger.budgets(0.0)) == [("a", 170, 1000)]


def test_who_breaks_off_and_goes_on_in_a_loop_pays_the_prompt_every_fourth_time() -> None:
    ledger, costs = ledger_of(Quota(monthly_tokens=1000)), list[int]()
    for number in range(9):
        before = spent(ledger)
        break_off(ledger, float(number))
        costs.append(spent(ledger) - before)
    assert costs == [10, 0, 0, 0, 10, 0, 0, 0, 10]


def test_to_go_on_does_not_renew_what_was_paid() -> None:
    ledger = ledger_of(Quota(monthly_tokens=1000))
    for now in (0.0, 400.0, 599.0):
        break_off(ledger, now)
    assert spent(ledger) == 10
    break_off(ledger, 601.0)
    assert spent(ledger) == 20


def test_what_never_reached_the_engine_uses_nothing_of_a_payment() -> None:
    ledger = ledger_of(Quota(monthly_tokens=1000))
    break_off(ledger, 0.0)
    for _ in range(5):
        reserved(ledger, GOING_ON, 1.0).cancel(1.0)
        reserved(ledger, GOING_ON, 2.0).settle(output_tokens=0, has_started=False, now=2.0)
    for now in (3.0, 4.0, 5.0):
        break_off(ledger, now)
    assert spent(ledger) == 10
    break_off(ledger, 6.0)
    assert spent(ledger) == 20


def test_two_streams_at_once_cannot_go_on_from_one_payment() -> None:
    ledger = ledger_of(Quota(monthly_tokens=1000))
    break_off(ledger, 0.0)
    first, second = reserved(ledger, GOING_ON, 1.0), reserved(ledger, GOING_ON, 1.0)
    for held in (second, first):
        held.settle(output_tokens=0, has_started=True, now=2.0, left_off=WORK)
    assert spent(ledger) == 20
    for now in (3.0, 4.0, 5.0):
        break_off(ledger, now)
    assert spent(ledger) == 20
    break_off(ledger, 6.0)
    assert spent(ledger) == 30


@pytest.mark.parametrize(
    ("tenant", "work", "now"),
    [("a", ("job", b"other"), 1.0), ("b", ("job", b"digest"), 1.0), ("a", ("job", b"digest"), 700.0)],
)
def test_a_prompt_that_was_not_paid_here_lately_is_paid(tenant: str, work: tuple[str, bytes], now: float) -> None:
    ledger = ledger_of(Quota(monthly_tokens=1000))
    reserved(ledger, demand(10, 90)).settle(output_tokens=30, has_started=True, now=0.0, left_off=("job", b"digest"))
    before = {name: spent for name, spent, _ in ledger.budgets(0.0)}.get(tenant, 0)
    ledger.reserve(tenant, demand(10, 60, resumes=work), now=now, wall=0.0)
    assert {name: spent for name, spent, _ in ledger.budgets(0.0)}[tenant] == before + 70


def test_a_budget_is_warned_of_once_a_month_and_begins_anew_in_the_next() -> None:
    notes = Notes()
    ledger = ledger_of(Quota(monthly_tokens=100, monthly_warning=0.5), notes)
    december = at(2026, 12, 31, 23)
    for _ in range(5):
        reserved(ledger, demand(10, 10), wall=december)
    assert notes.warnings == [("a", 60, 100)]
    assert refused(ledger, demand(10, 10), wall=december).retry_after_s == 3600.0
    assert list(ledger.budgets(at(2027, 1, 1))) == [("a", 0, 100)]
    for _ in range(3):
        reserved(ledger, demand(10, 10), wall=at(2027, 1, 1))
    assert notes.warnings == [("a", 60, 100)] * 2


def test_what_was_reserved_in_the_old_month_changes_nothing_in_the_new_one() -> None:
    ledger = ledger_of(Quota(monthly_tokens=100))
    held = reserved(ledger, demand(10, 90), wall=at(2026, 12, 31))
    reserved(ledger, demand(10, 40), wall=at(2027, 1, 1))
    held.settle(output_tokens=0, has_started=True, now=0.0)
    assert list(ledger.budgets(at(2027, 1, 1))) == [("a", 50, 100)]


def test_a_clock_that_is_set_back_begins_no_month_anew() -> None:
    ledger = ledger_of(Quota(monthly_tokens=100))
    reserved(ledger, demand(10, 40), wall=at(2027, 1, 1))
    reserved(ledger, demand(10, 40), wall=at(2026, 12, 31))
    assert refused(ledger, demand(1, 1), wall=at(2026, 12, 31)).quota == Limit.MONTHLY_TOKENS


def test_changed_limits_hold_at_once_and_forget_nothing() -> None:
    limits = {"a": Quota(requests_per_minute=3)}
    ledger = QuotaLedger(lambda tenant: limits[tenant], Notes())
    reserved(ledger, demand())
    reserved(ledger, demand())
    limits["a"] = Quota(requests_per_minute=2)
    ledger.reload()
    assert refused(ledger, demand()).actual == 3
    limits["a"] = UNLIMITED
    ledger.reload()
    for _ in range(10):
        reserved(ledger, demand())


def test_a_tenant_without_limits_has_no_account() -> None:
    ledger = ledger_of(UNLIMITED)
    for number in range(1000):
        ledger.reserve(f"t{number}", demand(), now=0.0, wall=0.0).settle(output_tokens=1, has_started=True, now=0.0)
    assert "of 0 tenants" in repr(ledger)


def test_accounts_are_bounded_and_only_idle_ones_are_forgotten() -> None:
    ledger = QuotaLedger(lambda _: Quota(requests_per_minute=1), Notes(), most_accounts=10)
    for number in range(100):
        ledger.reserve(f"t{number}", demand(), now=number * 10.0, wall=0.0).cancel(number * 10.0)
    assert "of 10 tenants" in repr(ledger)
    busy = ledger_of(Quota(requests_per_minute=1))
    for number in range(20):
        busy.reserve(f"t{number}", demand(), now=0.0, wall=0.0)
    with pytest.raises(QuotaExceeded):
        busy.reserve("t0", demand(), now=1.0, wall=0.0)


def test_hints_rise_towards_the_past_and_are_whole_milliseconds() -> None:
    ledger = ledger_of(Quota(tokens_per_minute=1000))
    for number in range(10):
        reserved(ledger, demand(50, 50), number * 0.7)
    hints = [refused(ledger, demand(50, size), 7.0).retry_after_s or math.nan for size in range(50, 950, 100)]
    assert all(earlier < later for earlier, later in pairwise(hints))
    assert all(math.isclose(hint * 1000, round(hint * 1000)) for hint in hints)
