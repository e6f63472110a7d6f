"""The order inside one priority class: fair between tenants by tokens served, first come first served inside a tenant.

A virtual token counter for each tenant (Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024): the
tenant with the smallest counter goes next; a started prompt and every output token raise its counter by 1 / weight.
Prompt and output tokens cost the same: callers see and pay both.

A tenant that comes back from idleness is lifted to the smallest counter among those waiting, less `burst_tokens`. With
0, as in the paper, idleness earns nothing, and the second request of a small burst already waits for its turn; with
some, a tenant below its share is served at once, and gets ahead of the others by so many tokens, times its weight, at
most.
"""

from __future__ import annotations

import heapq
import math
from collections import OrderedDict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from inferwire_server.domain.generation import Priority
from inferwire_server.scheduling.ticket import TenantFlow, Ticket, TicketState

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Ahead:
    """What is expected to be started before a request."""

    requests: int = 0
    prompt_tokens: int = 0

    def __add__(self, other: Ahead) -> Ahead:
        return Ahead(self.requests + other.requests, self.prompt_tokens + other.prompt_tokens)


class _Rank(Generic[T]):
    """A tenant's place in the heap; outdated as soon as the tenant has another one."""

    __slots__ = ("flow", "last_started", "served")

    def __init__(self, flow: TenantFlow[T]) -> None:
        self.flow = flow
        self.served = flow.served
        self.last_started = flow.last_started

    def __lt__(self, other: _Rank[T]) -> bool:
        """At equal counters the tenant that was started least recently goes first."""
        return (self.served, self.last_started) < (other.served, other.last_started)


class PriorityClass(Generic[T]):
    """Tickets of one class. Costs O(log tenants) a change and O(1) a charge."""

    def __init__(self, priority: Priority, weights: Mapping[str, float], burst_tokens: int) -> None:
        self.priority = priority
        self._burst_tokens = burst_tokens
        self._weights = weights
        self._flows: dict[str, TenantFlow[T]] = {}
        self._ranks: list[_Rank[T]] = []
        self._current: dict[str, _Rank[T]] = {}
        self._retired: list[_Rank[T]] = []
        self._offered: OrderedDict[int, Ticket[T]] = OrderedDict()
        self._virtual_time = 0.0
        self._starts = 0
        self._last_start_at = -math.inf
        self.waiting = 0
        self.waiting_prompt_tokens = 0
        self.waiting_kv_blocks = 0
        self.running = 0
        self.running_slots = 0
        self.running_kv_blocks = 0

    def flow(self, tenant: str) -> TenantFlow[T]:
        """The tenant's flow; a new one is kept only once a ticket of it is added."""
        return self._flows.get(tenant) or TenantFlow(tenant, token_price=1.0 / self._weights.get(tenant, 1.0))

    @property
    def flows(self) -> Collection[TenantFlow[T]]:
        """Of tenants with something waiting or running, and of those whose counter still matters."""
        return self._flows.values()

    def add(self, ticket: Ticket[T]) -> None:
        flow = ticket.flow
        self._flows[flow.tenant] = flow
        flow.waiting += 1
        flow.waiting_prompt_tokens += ticket.prompt_tokens
        flow.waiting_kv_blocks += ticket.kv_blocks
        self.waiting += 1
        self.waiting_prompt_tokens += ticket.prompt_tokens
        self.waiting_kv_blocks += ticket.kv_blocks
        self._activate(flow)
        flow.offered[ticket.sequence] = ticket
        self._offered[ticket.sequence] = ticket

    def set_aside(self, ticket: Ticket[T]) -> None:
        """Offer others before it until `bring_back`; it goes on counting as waiting."""
        self._withdraw(ticket)
        ticket.state = TicketState.ASIDE

    def bring_back(self, ticket: Ticket[T]) -> None:
        """Offer it again, at its old place among its tenant's."""
        ticket.state = TicketState.WAITING
        self._activate(ticket.flow)
        for offered in (ticket.flow.offered, self._offered):
            later = [sequence for sequence in offered if sequence > ticket.sequence]
            offered[ticket.sequence] = ticket
            for sequence in later:
                offered.move_to_end(sequence)

    def leave(self, ticket: Ticket[T]) -> None:
        """Drop a ticket that was not started."""
        self._uncount_waiting(ticket)
        ticket.state = TicketState.GONE
        self._retire_if_idle(ticket.flow)

    def start(self, ticket: Ticket[T], now: float) -> None:
        """Move a waiting ticket to running and charge its prompt."""
        flow = ticket.flow
        self._last_start_at = now
        self._virtual_time = max(self._virtual_time, flow.served)
        self._uncount_waiting(ticket)
        ticket.state = TicketState.RUNNING
        flow.served += ticket.prompt_tokens * flow.token_price
        flow.last_started = self._starts
        self._starts += 1
        flow.running += 1
        self.running += 1
        self.running_slots += ticket.slots
        self.running_kv_blocks += ticket.kv_blocks
        self._forget_overtaken()

    def finish(self, ticket: Ticket[T]) -> None:
        """A running ticket's slots are free."""
        ticket.state = TicketState.GONE
        ticket.flow.running -= 1
        self.running -= 1
        self.running_slots -= ticket.slots
        self.running_kv_blocks -= ticket.kv_blocks
        self._retire_if_idle(ticket.flow)

    def refund(self, ticket: Ticket[T], tokens: int) -> None:
        """Take back what a ticket was charged too much."""
        flow = ticket.flow
        flow.served -= tokens * flow.token_price
        if flow.offered:
            self._rank(flow)

    def first(self) -> Ticket[T] | None:
        """Whose turn it is."""
        top = self._top()
        return None if top is None else next(iter(top.flow.offered.values()))

    def standing_since(self) -> float | None:
        """Since when something has waited and nothing was started; None when nothing waits."""
        oldest = next(iter(self._offered.values()), None)
        return None if oldest is None else max(oldest.enqueued_at, self._last_start_at)

    def ahead(self, flow: TenantFlow[T], before: Ticket[T] | None, mean_output_tokens: float) -> Ahead:
        """What this class is expected to start before a ticket (or a newcomer) of a tenant. O(tenants waiting).

        A fluid estimate: every other tenant is served until its counter reaches the one that this tenant will have.
        """
        if before is None:
            requests, tokens = flow.waiting, flow.waiting_prompt_tokens
        else:
            earlier = [ticket for ticket in flow.offered.values() if ticket.sequence < before.sequence]
            requests, tokens = len(earlier), sum(ticket.prompt_tokens for ticket in earlier)
        served = flow.served if flow.offered else max(flow.served, self._floor())
        reached = served + (tokens + requests * mean_output_tokens) * flow.token_price
        for rank in self._current.values():
            other = rank.flow
            if other is flow or not other.offered or other.served > reached:
                continue
            mean_prompt_tokens = other.waiting_prompt_tokens / other.waiting
            cost = max(1.0, mean_prompt_tokens + mean_output_tokens) * other.token_price
            overtaking = min(other.waiting, 1 + int((reached - other.served) / cost))
            requests += overtaking
            tokens += int(overtaking * mean_prompt_tokens)
        return Ahead(requests, tokens)

    def _activate(self, flow: TenantFlow[T]) -> None:
        if not flow.offered:
            flow.floor = self._floor()
            flow.served = max(flow.served, flow.floor)
            if flow.tenant not in self._current:
                self._rank(flow)

    def _floor(self) -> float:
        """The least counter that a tenant may come back with."""
        top = self._top()
        reached = self._virtual_time if top is None else max(self._virtual_time, top.served)
        return reached - self._burst_tokens

    def _rank(self, flow: TenantFlow[T]) -> None:
        rank = _Rank(flow)
        self._current[flow.tenant] = rank
        heapq.heappush(self._ranks, rank)
        if len(self._ranks) > 2 * len(self._current) + 64:
            self._ranks = list(self._current.values())
            heapq.heapify(self._ranks)

    def _top(self) -> _Rank[T] | None:
        """The smallest counter. Counters rise without touching the heap; a rank is brought up to date on top of it."""
        ranks = self._ranks
        while ranks:
            top = ranks[0]
            flow = top.flow
            if self._current.get(flow.tenant) is not top:
                heapq.heappop(ranks)
            elif not flow.offered:
                heapq.heappop(ranks)
                del self._current[flow.tenant]
            elif top.served < flow.served or top.last_started < flow.last_started:
                top.served = flow.served
                top.last_started = flow.last_started
                heapq.heapreplace(ranks, top)
            else:
                return top
        return None

    def _withdraw(self, ticket: Ticket[T]) -> None:
        if ticket.state is TicketState.WAITING:
            del ticket.flow.offered[ticket.sequence]
            del self._offered[ticket.sequence]

    def _uncount_waiting(self, ticket: Ticket[T]) -> None:
        self._withdraw(ticket)
        flow = ticket.flow
        flow.waiting -= 1
        flow.waiting_prompt_tokens -= ticket.prompt_tokens
        flow.waiting_kv_blocks -= ticket.kv_blocks
        self.waiting -= 1
        self.waiting_prompt_tokens -= ticket.prompt_tokens
        self.waiting_kv_blocks -= ticket.kv_blocks

    def _retire_if_idle(self, flow: TenantFlow[T]) -> None:
        """Keep an idle tenant's counter only as long as it is above what the tenant would be lifted to."""
        if not flow.is_idle:
            return
        if self.waiting == 0 and self.running == 0:
            self._forget_all()
        elif flow.served <= max(flow.floor, self._virtual_time - self._burst_tokens):
            self._forget(flow)
        else:
            heapq.heappush(self._retired, _Rank(flow))

    def _forget_overtaken(self) -> None:
        overtaken = self._virtual_time - self._burst_tokens
        while self._retired and self._retired[0].served <= overtaken:
            flow = heapq.heappop(self._retired).flow
            if flow.is_idle and flow.served <= overtaken and self._flows.get(flow.tenant) is flow:
                self._forget(flow)

    def _forget(self, flow: TenantFlow[T]) -> None:
        del self._flows[flow.tenant]
        self._current.pop(flow.tenant, None)

    def _forget_all(self) -> None:
        """Nobody waits or runs: nobody is owed anything."""
        self._flows.clear()
        self._ranks.clear()
        self._current.clear()
        self._retired.clear()
        self._virtual_time = 0.0
