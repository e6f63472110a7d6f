"""Who goes next when the engine has room: priority classes, fairness by tokens between tenants, bounded waiting.

Rules, in this order:

1. A class of which nothing was started for `ageing_s`, although something waited all that time, goes before the
   classes above, once. So no class stands still: its next ticket takes the second slot that is released after
   `ageing_s`, at the latest. The classes above lose one start in that time, however much waits below.
2. Otherwise interactive before standard before batch. Batch leaves the last slot of an engine with several free for the
   classes above, whose requests then need not wait for the end of a batch output; by rule 1 it may take that slot only
   when it has no other.
3. Inside a class the order is that of `priority_class`.

The ticket whose turn it is waits for enough free slots; none overtakes it. Time comes in as an argument (seconds of any
one monotonic clock).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from inferwire_server.domain.generation import Priority
from inferwire_server.scheduling.displacement import Resource, displaced
from inferwire_server.scheduling.priority_class import Ahead, PriorityClass
from inferwire_server.scheduling.ticket import TenantFlow, Ticket, TicketState

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantView:
    """What one tenant has here now, over all classes."""

    tenant: str
    waiting: int = 0
    waiting_prompt_tokens: int = 0
    running: int = 0


class FairQueue(Generic[T]):
    """Waiting and running tickets of one engine."""

    def __init__(
        self,
        *,
        weights: Mapping[str, float] | None = None,
        ageing_s: float = 5.0,
        burst_tokens: int = 8192,
        reserved_slots: int = 1,
    ) -> None:
        """`weights` by tenant, 1 where absent; twice the weight is twice the tokens.

        `reserved_slots` are kept free of batch, all but one of the engine's at most.
        """
        self._ageing_s = ageing_s
        self._reserved_slots = reserved_slots
        self._classes = {priority: PriorityClass[T](priority, weights or {}, burst_tokens) for priority in Priority}
        self._by_rank = [self._classes[priority] for priority in sorted(Priority)]
        self._sequence = 0
        self._now = 0.0
        self._mean_output_tokens = 0.0

    @property
    def waiting(self) -> int:
        """Tickets not started."""
        return sum([each.waiting for each in self._by_rank])

    @property
    def waiting_prompt_tokens(self) -> int:
        return sum(each.waiting_prompt_tokens for each in self._by_rank)

    @property
    def running(self) -> int:
        return sum(each.running for each in self._by_rank)

    @property
    def running_slots(self) -> int:
        """Slots that started tickets hold."""
        return sum([each.running_slots for each in self._by_rank])

    @property
    def reserved_kv_blocks(self) -> int:
        """Of waiting and running tickets."""
        return sum(each.waiting_kv_blocks + each.running_kv_blocks for each in self._by_rank)

    def waiting_in(self, priority: Priority) -> int:
        """Tickets of one class not started."""
        return self._classes[priority].waiting

    def push(
        self,
        item: T,
        *,
        tenant: str,
        priority: Priority,
        prompt_tokens: int,
        now: float,
        slots: int = 1,
        kv_blocks: int = 0,
    ) -> Ticket[T]:
        """Put a request at the end of its tenant's line in its class."""
        self._now = now
        each = self._classes[priority]
        ticket = Ticket(
            item=item,
            priority=priority,
            prompt_tokens=prompt_tokens,
            slots=slots,
            kv_blocks=kv_blocks,
            enqueued_at=now,
            sequence=self._sequence,
            flow=each.flow(tenant),
        )
        self._sequence += 1
        each.add(ticket)
        return ticket

    def head(self, now: float, free_slots: int, total_slots: int) -> Ticket[T] | None:
        """The ticket to start now, left in place; None when there is none or it must wait for slots."""
        self._now = now
        if free_slots < 1:
            return None
        ticket = self._overdue(now, free_slots, total_slots) or self._first_by_rank(free_slots, total_slots)
        return ticket if ticket is not None and ticket.slots <= free_slots else None

    def pop(self, ticket: Ticket[T]) -> None:
        """The engine has taken it, at the time last given to `head` or `push`: charge its prompt to its tenant."""
        self._of_waiting(ticket).start(ticket, self._now)

    def remove(self, ticket: Ticket[T]) -> None:
        """It was cancelled, refused or expired before the engine took it."""
        self._of_waiting(ticket).leave(ticket)

    def release(self, ticket: Ticket[T]) -> None:
        """A started ticket has ended: its slots are free."""
        if ticket.state is not TicketState.RUNNING:
            raise ValueError(f"a {ticket.state.value} ticket holds no slots")
        self._mean_output_tokens += 0.05 * (ticket.output_tokens - self._mean_output_tokens)
        self._classes[ticket.priority].finish(ticket)

    def charge(self, ticket: Ticket[T], output_tokens: int) -> None:
        """A running ticket has produced tokens."""
        ticket.output_tokens += output_tokens
        flow = ticket.flow
        flow.served += output_tokens * flow.token_price

    def refund(self, ticket: Ticket[T], prompt_tokens: int) -> None:
        """Prompt tokens of a running ticket that came from a cache or were never computed."""
        self._classes[ticket.priority].refund(ticket, prompt_tokens)

    def set_aside(self, ticket: Ticket[T]) -> None:
        """Let others go before a waiting ticket until `bring_back`."""
        self._of_waiting(ticket).set_aside(ticket)

    def bring_back(self, tickets: Iterable[Ticket[T]]) -> None:
        """Offer tickets again that were set aside; those that left meanwhile are passed over."""
        for ticket in tickets:
            if ticket.state is TicketState.ASIDE:
                self._classes[ticket.priority].bring_back(ticket)

    def ahead_of(self, ticket: Ticket[T]) -> Ahead:
        """What is expected to be started before a waiting ticket if nothing more arrives."""
        return self._ahead(ticket.flow, ticket.priority, ticket)

    def ahead_of_newcomer(self, tenant: str, priority: Priority) -> Ahead:
        """The same for a request that is not here yet."""
        return self._ahead(self._classes[priority].flow(tenant), priority, None)

    def position(self, ticket: Ticket[T]) -> int:
        """1 for the next one to be started; an estimate where several tenants wait."""
        return self.ahead_of(ticket).requests + 1

    def displaced_by(
        self,
        *,
        tenant: str,
        priority: Priority,
        adding: int,
        lacking: Mapping[Resource, int],
        guaranteed: int,
    ) -> list[Ticket[T]] | None:
        """Who must leave so that a newcomer fits into a full queue, by `displacement`; None: it has no claim to that.

        `lacking` is what must become free; `adding` what the newcomer will hold of it beyond what it has in the queue
        already; a lower class keeps `guaranteed` tickets. Nothing is removed here.
        """
        own_class = self._classes[priority]
        below = self._by_rank[: self._by_rank.index(own_class) : -1]
        chosen: list[Ticket[T]] = []
        for resource, needed in lacking.items():
            missing = needed - sum(resource.of_ticket(ticket) for ticket in chosen)
            if missing > 0:
                more = displaced(
                    resource,
                    missing,
                    newcomer=own_class.flow(tenant),
                    adding=adding,
                    own_class=own_class,
                    below=below,
                    guaranteed=guaranteed,
                    already=frozenset(chosen),
                )
                if more is None:
                    return None
                chosen += more
        return chosen

    def tenants(self) -> list[TenantView]:
        """Every tenant with something waiting or running."""
        views: dict[str, TenantView] = {}
        for each in self._by_rank:
            for flow in each.flows:
                if not flow.is_idle:
                    seen = views.get(flow.tenant, TenantView(tenant=flow.tenant))
                    views[flow.tenant] = TenantView(
                        tenant=flow.tenant,
                        waiting=seen.waiting + flow.waiting,
                        waiting_prompt_tokens=seen.waiting_prompt_tokens + flow.waiting_prompt_tokens,
                        running=seen.running + flow.running,
                    )
        return list(views.values())

    def _overdue(self, now: float, free_slots: int, total_slots: int) -> Ticket[T] | None:
        """What overtakes the classes above because nothing of its class was started for too long."""
        for each in self._by_rank[1:]:
            standing_since = each.standing_since()
            if standing_since is not None and now - standing_since >= self._ageing_s:
                ticket = each.first()
                if ticket is not None and (each.running == 0 or self._leaves_reserve(ticket, free_slots, total_slots)):
                    return ticket
        return None

    def _first_by_rank(self, free_slots: int, total_slots: int) -> Ticket[T] | None:
        for each in self._by_rank:
            ticket = each.first()
            if ticket is not None:
                return ticket if self._leaves_reserve(ticket, free_slots, total_slots) else None
        return None

    def _leaves_reserve(self, ticket: Ticket[T], free_slots: int, total_slots: int) -> bool:
        reserved = min(self._reserved_slots, total_slots - 1)
        return ticket.priority is not Priority.BATCH or ticket.slots + reserved <= free_slots

    def _above(self, each: PriorityClass[T]) -> list[PriorityClass[T]]:
        return self._by_rank[: self._by_rank.index(each)]

    def _of_waiting(self, ticket: Ticket[T]) -> PriorityClass[T]:
        if not ticket.is_waiting:
            raise ValueError(f"a {ticket.state.value} ticket is not in the queue")
        return self._classes[ticket.priority]

    def _ahead(self, flow: TenantFlow[T], priority: Priority, before: Ticket[T] | None) -> Ahead:
        own_class = self._classes[priority]
        total = own_class.ahead(flow, before, self._mean_output_tokens)
        for above in self._above(own_class):
            total += Ahead(above.waiting, above.waiting_prompt_tokens)
        return total
