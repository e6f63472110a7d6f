"""What one tenant uses, against its limits."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import NamedTuple

from inferwire_server.domain.generation import Priority
from inferwire_server.security.prompt_payments import Payment, PromptPayments, after_prefill
from inferwire_server.security.quota import Demand, Limit, Quota, Work
from inferwire_server.security.sliding_window import SlidingWindow, Slot

_NEWEST_SHARE = 0.1
"""Of the latest request in the mean of how long requests are held."""
_UNKNOWN_HOLD_S = 1.0


class Excess(NamedTuple):
    """A limit that a request would exceed."""

    wait_s: float
    """Until it would not; infinity when the request can never have what it asks for."""
    limit: Limit
    most: int | None = None
    actual: int | None = None


class Month:
    """Tokens of one calendar month in UTC. `wall` is seconds since the epoch."""

    __slots__ = ("ends_at", "has_warned", "number", "spent")

    def __init__(self) -> None:
        self.spent = 0
        """Reserved ones included."""
        self.has_warned = False
        self.number = 0
        self.ends_at = -math.inf

    def turn(self, wall: float) -> None:
        """Begin anew when the month is over. A clock that is set back changes nothing."""
        if wall >= self.ends_at:
            today = datetime.fromtimestamp(wall, UTC)
            year, month = (today.year, today.month + 1) if today.month < 12 else (today.year + 1, 1)
            self.ends_at = datetime(year, month, 1, tzinfo=UTC).timestamp()
            self.number += 1
            self.spent = 0
            self.has_warned = False


class Account:
    """Runs on the serving loop. `now` is monotonic seconds, `wall` seconds since the epoch."""

    __slots__ = ("_mean_hold_s", "_requests", "_tokens", "held", "month", "paid_prompts", "quota")

    def __init__(self, quota: Quota) -> None:
        self.quota = quota
        """May be replaced at any time; what was used stays."""
        self.held = 0
        """Reservations that are not settled."""
        self.month = Month()
        self.paid_prompts = PromptPayments()
        self._requests = SlidingWindow()
        self._tokens = SlidingWindow()
        self._mean_hold_s = _UNKNOWN_HOLD_S

    def __repr__(self) -> str:
        return f"<Account {self.held} held, requests {self._requests!r}, tokens {self._tokens!r}>"

    def refusal_on_arrival(self, priority: Priority, now: float) -> Excess | None:
        """What can be said before the tokens are known."""
        return _longest(self._excesses_on_arrival(priority, now))

    def refusal(self, demand: Demand, now: float, wall: float) -> Excess | None:
        """The limit that keeps it out the longest; None when it may come in."""
        excesses = self._excesses_on_arrival(demand.priority, now)
        self._find_tokens(excesses, self._tokens_of(demand, now), now, wall)
        quota = self.quota
        most = quota.max_prompt_tokens
        if most is not None and demand.prompt_tokens > most:
            excesses.append(Excess(math.inf, Limit.MAX_PROMPT_TOKENS, most, demand.prompt_tokens))
        most = quota.max_output_tokens
        if most is not None and demand.max_output_tokens > most:
            excesses.append(Excess(math.inf, Limit.MAX_OUTPUT_TOKENS, most, demand.max_output_tokens))
        return _longest(excesses)

    def reserve(self, demand: Demand, now: float, wall: float) -> AccountReservation:
        """Count what was not refused."""
        tokens = self._tokens_of(demand, now)
        payment = self.paid_prompts.take(demand.resumes, now)
        self.held += 1
        self.month.turn(wall)
        self.month.spent += tokens
        return AccountReservation(
            self, demand, tokens, payment, self._requests.take(1, now), self._tokens.take(tokens, now), now
        )

    def is_idle(self, now: float) -> bool:
        """Whether forgetting it would forget nothing that counts, the month aside."""
        return not self.held and not self._requests.used(now) and not self._tokens.used(now)

    def settled(self, reservation: AccountReservation, used: int, now: float, *, requests: int) -> None:
        """`used` tokens were used of what was reserved, and of the one request `requests`."""
        self.held -= 1
        self._mean_hold_s += _NEWEST_SHARE * (now - reservation.taken_at - self._mean_hold_s)
        unused = reservation.tokens - used
        self._tokens.give_back(reservation.token_slot, unused)
        self._requests.give_back(reservation.request_slot, 1 - requests)
        if reservation.month == self.month.number:
            self.month.spent -= unused

    def _tokens_of(self, demand: Demand, now: float) -> int:
        """A prompt that was counted here when its stream began is not counted again when the stream goes on."""
        is_counted = self.paid_prompts.find(demand.resumes, now) is not None
        return demand.output_tokens + (0 if is_counted else demand.prompt_tokens)

    def _excesses_on_arrival(self, priority: Priority, now: float) -> list[Excess]:
        quota, excesses = self.quota, []
        if priority not in quota.priorities:
            excesses.append(Excess(math.inf, Limit.PRIORITIES))
        most = quota.concurrent_requests
        if most is not None and self.held >= most:
            wait_s = self._mean_hold_s / most if most else math.inf
            excesses.append(Excess(wait_s, Limit.CONCURRENT_REQUESTS, most, self.held + 1))
        most = quota.requests_per_minute
        if most is not None and (wait_s := self._requests.wait_s(1, most, now)):
            excesses.append(Excess(wait_s, Limit.REQUESTS_PER_MINUTE, most, self._requests.used(now) + 1))
        return excesses

    def _find_tokens(self, excesses: list[Excess], tokens: int, now: float, wall: float) -> None:
        most = self.quota.tokens_per_minute
        if most is not None and (wait_s := self._tokens.wait_s(tokens, most, now)):
            excesses.append(Excess(wait_s, Limit.TOKENS_PER_MINUTE, most, self._tokens.used(now) + tokens))
        most = self.quota.monthly_tokens
        if most is not None:
            self.month.turn(wall)
            actual = self.month.spent + tokens
            if actual > most:
                wait_s = self.month.ends_at - wall if tokens <= most else math.inf
                excesses.append(Excess(wait_s, Limit.MONTHLY_TOKENS, most, actual))


class AccountReservation:
    """Of one request; settled or cancelled once, and nothing after that."""

    __slots__ = (
        "_account",
        "_demand",
        "_is_open",
        "_payment",
        "month",
        "request_slot",
        "taken_at",
        "token_slot",
        "tokens",
    )

    def __init__(
        self,
        account: Account,
        demand: Demand,
        tokens: int,
        payment: Payment | None,
        request_slot: Slot,
        token_slot: Slot,
        now: float,
    ) -> None:
        self.tokens = tokens
        self.request_slot = request_slot
        self.token_slot = token_slot
        self.taken_at = now
        self.month = account.month.number
        self._account = account
        self._demand = demand
        self._payment = payment
        self._is_open = True

    def settle(self, *, output_tokens: int, has_started: bool, now: float, left_off: Work | None = None) -> None:
        """It is over. Without a start the prompt was not read; `left_off` is what may be resumed later."""
        if not self._is_open:
            return
        self._is_open = False
        prompt_tokens = self.tokens - self._demand.output_tokens if has_started else 0
        self._account.settled(self, prompt_tokens + output_tokens, now, requests=1)
        if not has_started:
            self._give_payment_back()
        elif left_off is not None:
            self._account.paid_prompts.keep(left_off, after_prefill(self._payment, now))

    def cancel(self, now: float) -> None:
        """It was refused after all, for another reason: nothing of it counts."""
        if self._is_open:
            self._is_open = False
            self._account.settled(self, 0, now, requests=0)
            self._give_payment_back()

    def _give_payment_back(self) -> None:
        if self._payment is not None and self._demand.resumes is not None:
            self._account.paid_prompts.keep(self._demand.resumes, self._payment)


def _longest(excesses: list[Excess]) -> Excess | None:
    return max(excesses, default=None)
