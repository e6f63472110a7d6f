"""What each tenant may use, and what it has used: reserved at admission at the worst case, settled at the end.

A request counts at the moment of its admission. So in any 60 seconds the requests admitted, and the tokens of those
requests, never exceed the limits: by what they may use until they end, then by what they have used. A month is a
calendar month in UTC. Time comes in as an argument.

`Quotas` is the port. The ledger keeps its accounts in this process; an implementation that shares them with other
servers would lease parts of the limits ahead of need, so that no request waits for a network.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Protocol

from inferwire_server.domain.errors import QuotaExceeded
from inferwire_server.domain.generation import Priority
from inferwire_server.security.account import Account, Excess
from inferwire_server.security.quota import UNLIMITED, Demand, Limit, Quota, Work

_MOST_ACCOUNTS = 10_000
_FIELDS = {Limit.PRIORITIES: "scheduling.priority", Limit.MAX_OUTPUT_TOKENS: "max_output_tokens"}
"""Of the request, by the limit that looks at them alone."""


class Reservation(Protocol):
    """What a request holds of its tenant's limits. Settle or cancel it once; more often changes nothing."""

    def settle(self, *, output_tokens: int, has_started: bool, now: float, left_off: Work | None = None) -> None:
        """It is over, after so many new tokens. `left_off`: what a later request may go on from."""

    def cancel(self, now: float) -> None:
        """It was refused for another reason: nothing of it counts."""


class Quotas(Protocol):
    """Called on the serving loop. `now` is monotonic seconds, `wall` seconds since the epoch."""

    def check_arrival(self, tenant: str, priority: Priority, now: float) -> None:
        """Before the tokens are known; reserves nothing. Raises QuotaExceeded."""

    def reserve(self, tenant: str, demand: Demand, *, now: float, wall: float) -> Reservation:
        """Count a request at its worst case. Raises QuotaExceeded, whose hint is when it will fit."""


class QuotaObserver(Protocol):
    """Told of what an operator wants to know; must not raise."""

    def quota_refused(self, tenant: str, limit: str) -> None: ...

    def budget_nearly_spent(self, tenant: str, spent: int, budget: int) -> None:
        """Once a month, when the warning threshold is reached."""


class QuotaLedger:
    """Quotas in memory. Tenants without limits cost nothing."""

    def __init__(
        self, quota_of: Callable[[str], Quota], observer: QuotaObserver, *, most_accounts: int = _MOST_ACCOUNTS
    ) -> None:
        self._quota_of = quota_of
        self._observer = observer
        self._most_accounts = most_accounts
        self._accounts: OrderedDict[str, Account] = OrderedDict()

    def __repr__(self) -> str:
        return f"<QuotaLedger of {len(self._accounts)} tenants>"

    def reload(self) -> None:
        """Ask again for the limits of every tenant; what was used stays counted."""
        for tenant, account in self._accounts.items():
            account.quota = self._quota_of(tenant)

    def budgets(self, wall: float) -> Iterator[tuple[str, int, int]]:
        """Tenant, tokens spent this month and the most they may be. For any thread."""
        for tenant, account in list(self._accounts.items()):
            budget = account.quota.monthly_tokens
            if budget is not None:
                yield tenant, account.month.spent if wall < account.month.ends_at else 0, budget

    def check_arrival(self, tenant: str, priority: Priority, now: float) -> None:
        account = self._account(tenant, now)
        refusal = None if account is None else account.refusal_on_arrival(priority, now)
        if refusal is not None:
            raise self._refused(tenant, refusal)

    def reserve(self, tenant: str, demand: Demand, *, now: float, wall: float) -> Reservation:
        account = self._account(tenant, now)
        if account is None:
            return _NOTHING_HELD
        refusal = account.refusal(demand, now, wall)
        if refusal is not None:
            raise self._refused(tenant, refusal)
        reservation = account.reserve(demand, now, wall)
        self._look_at_budget(tenant, account)
        return reservation

    def _account(self, tenant: str, now: float) -> Account | None:
        """None for a tenant without limits."""
        account = self._accounts.get(tenant)
        if account is None:
            quota = self._quota_of(tenant)
            if quota == UNLIMITED:
                return None
            account = self._accounts[tenant] = Account(quota)
            self._forget_idle(now)
        self._accounts.move_to_end(tenant)
        return account

    def _forget_idle(self, now: float) -> None:
        """Names are not bounded where nobody proves who he is: the least recently used idle one goes."""
        if len(self._accounts) > self._most_accounts:
            idle = next((name for name, account in self._accounts.items() if account.is_idle(now)), None)
            if idle is not None:
                del self._accounts[idle]

    def _refused(self, tenant: str, excess: Excess) -> QuotaExceeded:
        self._observer.quota_refused(tenant, excess.limit)
        return _error(excess)

    def _look_at_budget(self, tenant: str, account: Account) -> None:
        quota, month = account.quota, account.month
        budget = quota.monthly_tokens
        if budget is not None and not month.has_warned and month.spent >= quota.monthly_warning * budget:
            month.has_warned = True
            self._observer.budget_nearly_spent(tenant, month.spent, budget)


def _error(excess: Excess) -> QuotaExceeded:
    limit, words, is_for_ever = excess.limit, excess.limit.replace("_", " "), math.isinf(excess.wait_s)
    if excess.most is None:
        message = f"the tenant may not ask for this, by its {words}"
    elif is_for_ever:
        message = f"more than the tenant may ever have: {words} {excess.actual}, at most {excess.most}"
    else:
        message = f"over the tenant’s quota: {words} would be {excess.actual}, at most {excess.most}"
    return QuotaExceeded(
        limit,
        message,
        field=_FIELDS.get(limit, ""),
        limit=excess.most,
        actual=excess.actual,
        retry_after_s=None if is_for_ever else _whole_ms(excess.wait_s),
    )


def _whole_ms(seconds: float) -> float:
    """Rounded up, for hints are sent in milliseconds, and one that comes too early is of no use."""
    return math.ceil(seconds * 1000 - 1e-3) / 1000


class _NothingHeld:
    def settle(self, *, output_tokens: int, has_started: bool, now: float, left_off: Work | None = None) -> None: ...

    def cancel(self, now: float) -> None: ...


_NOTHING_HELD = _NothingHeld()
