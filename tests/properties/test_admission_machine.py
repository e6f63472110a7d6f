"""Whatever arrives, leaves, expires or ends: the bounds hold exactly, and nobody is refused without need."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from inferwire_server.domain.engine import Capabilities
from inferwire_server.domain.errors import Overloaded
from inferwire_server.domain.generation import Priority
from inferwire_server.scheduling.admission_policy import GUARANTEED_SHARE, AdmissionPolicy, Bounds
from inferwire_server.scheduling.drain_rate import LONGEST_HINT_S, SHORTEST_HINT_S, DrainRate
from inferwire_server.scheduling.fair_queue import FairQueue
from inferwire_server.scheduling.ticket import Ticket

SLOTS = 2
BOUNDS = Bounds(waiting_requests=8, waiting_prompt_tokens=2000, reserved_kv_blocks=150)
FACTS = Capabilities(
    request_fields=frozenset(), max_running=SLOTS, max_context_tokens=1000, kv_blocks=100, kv_block_tokens=16
)


class AdmissionMachine(RuleBasedStateMachine):
    """Requests of three tenants and classes before an engine with two slots."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = FairQueue[str]()
        self.drain_rate = DrainRate()
        self.policy = AdmissionPolicy(FACTS, BOUNDS, self.drain_rate)
        self.now = 0.0
        self.waiting: list[Ticket[str]] = []
        self.running: list[Ticket[str]] = []
        self.arrived = 0
        self.ended = 0

    @rule(
        tenant=st.sampled_from(["a", "b", "c"]),
        priority=st.sampled_from(Priority),
        prompt_tokens=st.integers(1, 600),
        max_output_tokens=st.integers(1, 100),
    )
    def arrive(self, tenant: str, priority: Priority, prompt_tokens: int, max_output_tokens: int) -> None:
        self.arrived += 1
        before = (self.queue.waiting, self.queue.waiting_prompt_tokens, self.queue.reserved_kv_blocks)
        blocks = self.policy.kv_blocks(prompt_tokens=prompt_tokens, max_output_tokens=max_output_tokens, count=1)
        refusal = self.admit(tenant, priority, prompt_tokens, blocks)
        if refusal is not None:
            self.ended += 1
            assert refusal.retry_after_s is not None
            assert SHORTEST_HINT_S <= refusal.retry_after_s <= LONGEST_HINT_S
            assert (self.queue.waiting, self.queue.waiting_prompt_tokens, self.queue.reserved_kv_blocks) == before
            assert self.would_exceed_a_bound(prompt_tokens, blocks)
        self.start_waiting()

    def admit(self, tenant: str, priority: Priority, prompt_tokens: int, blocks: int) -> Overloaded | None:
        try:
            self.policy.check_arrival(self.queue, tenant=tenant, priority=priority, preparing=0, now=self.now)
        except Overloaded as refusal:
            return refusal
        ticket = self.queue.push(
            "", tenant=tenant, priority=priority, prompt_tokens=prompt_tokens, now=self.now, kv_blocks=blocks
        )
        free = SLOTS - len(self.running)
        try:
            displaced = self.policy.check_pushed(self.queue, ticket, free_slots=free, total_slots=SLOTS, now=self.now)
        except Overloaded as refusal:
            self.queue.remove(ticket)
            return refusal
        self.check_displaced(displaced, ticket)
        self.waiting.append(ticket)
        for other in displaced:
            self.leave(other)
        return None

    def check_displaced(self, displaced: list[Ticket[str]], newcomer: Ticket[str]) -> None:
        assert len(set(displaced)) == len(displaced)
        assert all(other in self.waiting for other in displaced)
        assert all(other.priority >= newcomer.priority for other in displaced)
        for priority in {other.priority for other in displaced if other.priority > newcomer.priority}:
            left = sum(t.priority is priority and t not in displaced for t in self.waiting)
            assert left >= BOUNDS.waiting_requests // GUARANTEED_SHARE
        for other in displaced:
            same_line = [t for t in self.waiting if (t.tenant, t.priority) == (other.tenant, other.priority)]
            assert same_line[0] not in displaced

    def start_waiting(self) -> None:
        while (ticket := self.queue.head(self.now, SLOTS - len(self.running), SLOTS)) is not None:
            self.queue.pop(ticket)
            self.waiting.remove(ticket)
            self.running.append(ticket)

    def leave(self, ticket: Ticket[str]) -> None:
        self.queue.remove(ticket)
        self.waiting.remove(ticket)
        self.ended += 1

    @rule(seconds=st.floats(0.001, 3.0))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.start_waiting()

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def cancel_or_expire(self, data: st.DataObject) -> None:
        self.leave(data.draw(st.sampled_from(self.waiting)))
        self.start_waiting()

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        ticket = data.draw(st.sampled_from(self.running))
        self.running.remove(ticket)
        self.queue.release(ticket)
        self.drain_rate.released(self.now, waiting=self.queue.waiting)
        self.ended += 1
        self.start_waiting()

    @invariant()
    def bounds_hold(self) -> None:
        assert self.queue.waiting <= BOUNDS.waiting_requests
        assert self.queue.waiting_prompt_tokens <= BOUNDS.waiting_prompt_tokens
        assert BOUNDS.reserved_kv_blocks is not None
        assert self.queue.reserved_kv_blocks <= BOUNDS.reserved_kv_blocks

    @invariant()
    def outcomes_add_up(self) -> None:
        assert self.queue.waiting == len(self.waiting)
        assert self.arrived == self.ended + len(self.waiting) + len(self.running)

    def teardown(self) -> None:
        """Everything returns to zero."""
        for ticket in list(self.waiting):
            self.leave(ticket)
        for ticket in self.running:
            self.queue.release(ticket)
        assert (self.queue.waiting, self.queue.waiting_prompt_tokens, self.queue.reserved_kv_blocks) == (0, 0, 0)

    def would_exceed_a_bound(self, prompt_tokens: int, blocks: int) -> bool:
        assert BOUNDS.reserved_kv_blocks is not None
        return (
            self.queue.waiting + 1 > BOUNDS.waiting_requests
            or self.queue.waiting_prompt_tokens + prompt_tokens > BOUNDS.waiting_prompt_tokens
            or self.queue.reserved_kv_blocks + blocks > BOUNDS.reserved_kv_blocks
        )


TestAdmissionMachine = AdmissionMachine.TestCase
TestAdmissionMachine.settings = settings(stateful_step_count=60)
