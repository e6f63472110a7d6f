"""What may wait: bounds on requests, prompt tokens and reserved KV blocks, exact after every decision."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from inferwire_server.domain.engine import Capabilities
from inferwire_server.domain.errors import InvalidRequest, Overloaded
from inferwire_server.domain.generation import Priority
from inferwire_server.scheduling.displacement import Resource
from inferwire_server.scheduling.drain_rate import DrainRate
from inferwire_server.scheduling.fair_queue import FairQueue
from inferwire_server.scheduling.ticket import Ticket

T = TypeVar("T")

GUARANTEED_SHARE = 8
"""A class keeps one place in this many, whatever the classes above ask for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Inclusive."""

    waiting_requests: int
    waiting_prompt_tokens: int
    reserved_kv_blocks: int | None = None
    """Of waiting and running requests at their worst case; None where the engine has no blocks."""


class AdmissionPolicy:
    """Decides on what the queue holds and changes nothing itself."""

    def __init__(self, capabilities: Capabilities, bounds: Bounds, drain_rate: DrainRate) -> None:
        """Raises ValueError when a request that the engine could run would never fit within the bounds."""
        if bounds.waiting_requests < 1:
            raise ValueError("waiting_requests must be at least 1")
        if bounds.waiting_prompt_tokens < capabilities.max_context_tokens:
            raise ValueError(f"waiting_prompt_tokens must be at least the context, {capabilities.max_context_tokens}")
        if bounds.reserved_kv_blocks is not None and bounds.reserved_kv_blocks < (capabilities.kv_blocks or 0):
            raise ValueError(f"reserved_kv_blocks must be at least the engine's own, {capabilities.kv_blocks}")
        self._capabilities = capabilities
        self._bounds = bounds
        self._drain_rate = drain_rate
        self._guaranteed = bounds.waiting_requests // GUARANTEED_SHARE

    def kv_blocks(self, *, prompt_tokens: int, max_output_tokens: int, count: int) -> int:
        """What a generation takes at its worst; 0 where the engine has no blocks.

        Raises InvalidRequest when it could never run.
        """
        facts = self._capabilities
        if facts.kv_blocks is None or facts.kv_block_tokens is None:
            return 0
        blocks = count * -(-(prompt_tokens + max_output_tokens) // facts.kv_block_tokens)
        if blocks > facts.kv_blocks:
            fitting = facts.kv_blocks // count * facts.kv_block_tokens
            raise InvalidRequest(
                "max_output_tokens",
                f"prompt and output may have {fitting} tokens together with output.count {count}; "
                "use a shorter prompt, a smaller max_output_tokens or fewer outputs",
                limit=fitting,
                actual=prompt_tokens + max_output_tokens,
            )
        return blocks

    def check_arrival(
        self, queue: FairQueue[T], *, tenant: str, priority: Priority, preparing: int, now: float
    ) -> None:
        """The cheap part, before any work on the prompt. Raises Overloaded.

        `preparing` requests have passed here and are not in the queue yet; there may be as many as may wait.
        """
        limit = self._bounds.waiting_requests
        if preparing < limit and queue.waiting < limit:
            return
        if preparing < limit:
            lacking = {Resource.REQUESTS: queue.waiting + 1 - limit}
            if self._displaced(queue, lacking, tenant=tenant, priority=priority, adding=1) is not None:
                return
        raise self.overloaded(queue, now)

    def check_pushed(
        self, queue: FairQueue[T], ticket: Ticket[T], *, free_slots: int, total_slots: int, now: float
    ) -> list[Ticket[T]]:
        """The exact part, right after a push: the tickets that must leave, as `overloaded`, so that all bounds hold.

        Raises Overloaded when it is `ticket` that must leave. One that can be started at once does not wait.
        """
        starts_now = queue.head(now, free_slots, total_slots) is ticket
        lacking = {
            resource: held - limit
            for resource, held, limit in self._held(queue)
            if held > limit and (resource is Resource.KV_BLOCKS or not starts_now)
        }
        if not lacking:
            return []
        displaced = self._displaced(queue, lacking, tenant=ticket.tenant, priority=ticket.priority, adding=0)
        if displaced is None:
            raise self.overloaded(queue, now)
        return displaced

    def overloaded(self, queue: FairQueue[T], now: float) -> Overloaded:
        """The refusal, with a hint: by then the queue should be down to half of its bound if nothing else came."""
        for resource, held, limit in self._held(queue):
            if held >= limit:
                message, bound, actual = f"the queue is full: {held} of {limit} {resource.value} are taken", limit, held
                break
        else:
            message, bound, actual = "the request gave up its place in a full queue", None, None
        excess = max(1.0, queue.waiting - self._bounds.waiting_requests / 2)
        retry_after_s = self._drain_rate.retry_after_s(now, excess)
        return Overloaded(message, limit=bound, actual=actual, retry_after_s=retry_after_s)

    def _held(self, queue: FairQueue[T]) -> list[tuple[Resource, int, int]]:
        bounds = self._bounds
        held = [
            (Resource.REQUESTS, queue.waiting, bounds.waiting_requests),
            (Resource.PROMPT_TOKENS, queue.waiting_prompt_tokens, bounds.waiting_prompt_tokens),
        ]
        if bounds.reserved_kv_blocks is not None:
            held.append((Resource.KV_BLOCKS, queue.reserved_kv_blocks, bounds.reserved_kv_blocks))
        return held

    def _displaced(
        self, queue: FairQueue[T], lacking: Mapping[Resource, int], *, tenant: str, priority: Priority, adding: int
    ) -> list[Ticket[T]] | None:
        return queue.displaced_by(
            tenant=tenant, priority=priority, adding=adding, lacking=lacking, guaranteed=self._guaranteed
        )
