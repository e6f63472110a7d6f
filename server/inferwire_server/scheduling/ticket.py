"""A request's place in the fair queue, from its arrival to the release of its slots."""

from __future__ import annotations

import enum
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from inferwire_server.domain.generation import Priority

T = TypeVar("T")


class TicketState(enum.Enum):
    """Where a ticket is in its life."""

    WAITING = "waiting"
    ASIDE = "aside"
    RUNNING = "running"
    GONE = "gone"


@dataclass(slots=True, eq=False, kw_only=True)
class Ticket(Generic[T]):
    """One request in the queue. Read it freely; only the queue that issued it writes to it."""

    item: T
    priority: Priority
    prompt_tokens: int
    slots: int
    """Engine slots it takes: one an output."""
    kv_blocks: int
    """Worst-case KV blocks, reserved from arrival to release."""
    enqueued_at: float
    sequence: int
    """Order of arrival over all tenants and classes."""
    flow: TenantFlow[T]
    state: TicketState = TicketState.WAITING
    output_tokens: int = 0
    """Output tokens charged so far."""

    @property
    def tenant(self) -> str:
        return self.flow.tenant

    @property
    def is_waiting(self) -> bool:
        """Whether the engine has not taken it yet, set aside or not."""
        return self.state is TicketState.WAITING or self.state is TicketState.ASIDE


@dataclass(slots=True, eq=False)
class TenantFlow(Generic[T]):
    """What one tenant has in one priority class."""

    tenant: str
    token_price: float
    """1 / weight: what a token adds to `served`."""
    served: float = 0.0
    """The virtual counter: tokens served divided by the weight, lifted when the tenant comes back from idleness."""
    floor: float = 0.0
    """The counter it was lifted to when it last became active."""
    last_started: int = -1
    """Number of the class's latest start that was this tenant's."""
    offered: OrderedDict[int, Ticket[T]] = field(default_factory=OrderedDict)
    """Tickets that may be started, by sequence."""
    waiting: int = 0
    """Tickets not started, those set aside included."""
    waiting_prompt_tokens: int = 0
    waiting_kv_blocks: int = 0
    running: int = 0

    @property
    def is_idle(self) -> bool:
        return self.waiting == 0 and self.running == 0
