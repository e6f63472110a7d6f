"""Which prompts are paid already, of streams that broke off and may go on: a payment is good for a few more prefills.

A stream that goes on is given its prompt again, and the engine reads it again. Were that free without end, whoever
breaks off and goes on in a loop would never pay, so a payment is used up and grows old, and going on renews nothing.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

from inferwire_server.security.quota import Work

FREE_PREFILLS = 3
"""As many as a call of the client goes on, unless it is told otherwise."""
VALID_S = 600.0
_MOST = 1000


class Payment(NamedTuple):
    """Of one prompt."""

    valid_until: float
    """Monotonic seconds."""
    free_prefills: int
    """Still to be had for it."""


class PromptPayments:
    """Of one tenant. A payment is kept here or held by one request, never both: so it is spent once."""

    __slots__ = ("_payments",)

    def __init__(self) -> None:
        self._payments: OrderedDict[Work, Payment] = OrderedDict()

    def find(self, work: Work | None, now: float) -> Payment | None:
        """What a request that goes on from there need not pay again."""
        payment = None if work is None else self._payments.get(work)
        return payment if payment is not None and now < payment.valid_until else None

    def take(self, work: Work | None, now: float) -> Payment | None:
        """Have a request hold it."""
        payment = self.find(work, now)
        if work is not None:
            self._payments.pop(work, None)
        return payment

    def keep(self, work: Work, payment: Payment) -> None:
        """For the next request that goes on from there; of two payments the newer one."""
        known = self._payments.get(work)
        if payment.free_prefills and (known is None or known < payment):
            self._payments[work] = payment
            if len(self._payments) > _MOST:
                self._payments.popitem(last=False)


def after_prefill(payment: Payment | None, now: float) -> Payment:
    """What is left once the engine has read the prompt of a request that held it; None: the request paid itself."""
    if payment is None:
        return Payment(now + VALID_S, FREE_PREFILLS)
    return payment._replace(free_prefills=payment.free_prefills - 1)
