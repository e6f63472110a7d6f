"""Short words for filling and emptying a fair queue in tests."""

from __future__ import annotations

from collections.abc import Iterable

from inferwire_server.domain.generation import Priority
from inferwire_server.scheduling.fair_queue import FairQueue
from inferwire_server.scheduling.ticket import Ticket

INTERACTIVE, STANDARD, BATCH = Priority.INTERACTIVE, Priority.STANDARD, Priority.BATCH
MANY_SLOTS = 1000


def push(
    queue: FairQueue[str],
    name: str,
    *,
    tenant: str = "t",
    priority: Priority = STANDARD,
    tokens: int = 100,
    now: float = 0.0,
    slots: int = 1,
    kv_blocks: int = 0,
) -> Ticket[str]:
    return queue.push(
        name, tenant=tenant, priority=priority, prompt_tokens=tokens, now=now, slots=slots, kv_blocks=kv_blocks
    )


def push_all(queue: FairQueue[str], names: Iterable[str], **about: object) -> list[Ticket[str]]:
    return [push(queue, name, **about) for name in names]  # type: ignore[arg-type]


def start(queue: FairQueue[str], *, now: float = 0.0, free: int = MANY_SLOTS, total: int = MANY_SLOTS) -> Ticket[str]:
    """Start whoever is next; there must be somebody."""
    ticket = queue.head(now, free, total)
    assert ticket is not None
    queue.pop(ticket)
    return ticket


def starting_order(queue: FairQueue[str], *, now: float = 0.0) -> list[str]:
    """Start everybody, each released before the next is started."""
    order = []
    while queue.waiting:
        ticket = start(queue, now=now)
        order.append(ticket.item)
        queue.release(ticket)
    return order
