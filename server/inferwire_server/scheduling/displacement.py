"""Which waiting requests give up their places in a full queue, so that no tenant and no class can fill it for itself.

Longest queue drop: places are taken from whoever holds most for its weight, newest first. Classes below the newcomer's
give way first.
"""

from __future__ import annotations

import enum
import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from inferwire_server.scheduling.priority_class import PriorityClass
from inferwire_server.scheduling.ticket import TenantFlow, Ticket

T = TypeVar("T")


class Resource(enum.Enum):
    """What waiting is bounded by."""

    REQUESTS = "requests"
    PROMPT_TOKENS = "prompt tokens"
    KV_BLOCKS = "KV blocks"

    def of_ticket(self, ticket: Ticket[T]) -> int:
        if self is Resource.REQUESTS:
            return 1
        return ticket.prompt_tokens if self is Resource.PROMPT_TOKENS else ticket.kv_blocks

    def of_waiting(self, holder: TenantFlow[T] | PriorityClass[T]) -> int:
        if self is Resource.REQUESTS:
            return holder.waiting
        return holder.waiting_prompt_tokens if self is Resource.PROMPT_TOKENS else holder.waiting_kv_blocks


@dataclass(slots=True)
class _Holder(Generic[T]):
    """A tenant with something to give, ordered by what it holds for its weight, most first."""

    held: float
    newest_first: Iterator[Ticket[T]]
    left: int
    token_price: float

    def __lt__(self, other: _Holder[T]) -> bool:
        return self.held > other.held


def displaced(
    resource: Resource,
    needed: int,
    *,
    newcomer: TenantFlow[T],
    adding: int,
    own_class: PriorityClass[T],
    below: Sequence[PriorityClass[T]],
    guaranteed: int,
    already: frozenset[Ticket[T]] = frozenset(),
) -> list[Ticket[T]] | None:
    """Tickets that free `needed` of a resource beyond `already`; None when the newcomer has no claim to that much.

    `below` is searched lowest class first, each down to `guaranteed` tickets; in the newcomer's own class a place is
    taken only from a tenant that holds more for its weight than the newcomer's with `adding` more. A tenant's longest
    waiting ticket always stays.
    """
    chosen: list[Ticket[T]] = []
    for each in below:
        spare = each.waiting - guaranteed - sum(ticket.priority is each.priority for ticket in already)
        needed -= _take(resource, needed, each, 0.0, spare, already, chosen)
    fair = (resource.of_waiting(newcomer) + adding) * newcomer.token_price
    needed -= _take(resource, needed, own_class, fair, own_class.waiting, already, chosen)
    return chosen if needed <= 0 else None


def _take(
    resource: Resource,
    needed: int,
    each: PriorityClass[T],
    fair: float,
    spare: int,
    already: frozenset[Ticket[T]],
    chosen: list[Ticket[T]],
) -> int:
    """Move up to `spare` tickets into `chosen` while a tenant holds more than `fair`; returns how much they free."""
    if needed <= 0 or spare <= 0:
        return 0
    holders = _holders(resource, each, fair, already)
    freed = 0
    while freed < needed and spare > 0 and holders and holders[0].held > fair:
        holder = holders[0]
        ticket = next(holder.newest_first)
        chosen.append(ticket)
        freed += resource.of_ticket(ticket)
        spare -= 1
        holder.left -= 1
        holder.held -= resource.of_ticket(ticket) * holder.token_price
        if holder.left > 1:
            heapq.heapreplace(holders, holder)
        else:
            heapq.heappop(holders)
    return freed


def _holders(
    resource: Resource, each: PriorityClass[T], fair: float, already: frozenset[Ticket[T]]
) -> list[_Holder[T]]:
    """A heap of the tenants that hold more than `fair` and have more than one ticket to offer."""
    holders = []
    for flow in each.flows:
        if resource.of_waiting(flow) * flow.token_price <= fair:
            continue
        tickets = [ticket for ticket in reversed(flow.offered.values()) if ticket not in already]
        if len(tickets) > 1:
            taken = sum(resource.of_ticket(ticket) for ticket in already if ticket.flow is flow)
            held = (resource.of_waiting(flow) - taken) * flow.token_price
            holders.append(_Holder(held, iter(tickets), len(tickets), flow.token_price))
    heapq.heapify(holders)
    return holders
