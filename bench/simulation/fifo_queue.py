"""First come, first served: what the fair queue is compared with."""

from __future__ import annotations

from typing import TypeVar

from inferwire_server.domain.generation import Priority
from inferwire_server.scheduling.fair_queue import FairQueue
from inferwire_server.scheduling.ticket import Ticket

T = TypeVar("T")


class FifoQueue(FairQueue[T]):
    """A fair queue that takes everybody for one tenant in one class."""

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
        return super().push(
            item,
            tenant="everybody",
            priority=Priority.STANDARD,
            prompt_tokens=prompt_tokens,
            now=now,
            slots=slots,
            kv_blocks=kv_blocks,
        )
