"""Whatever happens to a fair queue: nobody is lost, nobody starves, a tenant's requests keep their order."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, precondition, rule
from inferwire_server.domain.generation import Priority
from inferwire_server.scheduling.fair_queue import FairQueue
from inferwire_server.scheduling.ticket import Ticket, TicketState

SLOTS = 4
AGEING_S = 5.0
TENANTS = st.sampled_from(["a", "b", "c"])
WEIGHTS = {"a": 1.0, "b": 3.0}


class FairQueueMachine(RuleBasedStateMachine):
    """A queue in front of an engine with four slots; the model is a list of tickets for each state."""

    fresh = Bundle("fresh")

    def __init__(self) -> None:
        super().__init__()
        self.queue = FairQueue[int](weights=WEIGHTS, ageing_s=AGEING_S, burst_tokens=500)
        self.now = 0.0
        self.offered: list[Ticket[int]] = []
        self.aside: list[Ticket[int]] = []
        self.running: list[Ticket[int]] = []
        self.last_start = dict.fromkeys(Priority, float("-inf"))
        self.passed_over = dict.fromkeys(Priority, 0)
        """Starts of other classes since a class was overdue."""

    @property
    def free(self) -> int:
        return SLOTS - len(self.running)

    @rule(target=fresh, tenant=TENANTS, priority=st.sampled_from(Priority), tokens=st.integers(1, 2000))
    def push(self, tenant: str, priority: Priority, tokens: int) -> Ticket[int]:
        ticket = self.queue.push(
            tokens, tenant=tenant, priority=priority, prompt_tokens=tokens, now=self.now, kv_blocks=tokens // 16
        )
        self.offered.append(ticket)
        return ticket

    @rule(seconds=st.floats(0.0, 4.0))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def start(self) -> None:
        ticket = self.queue.head(self.now, self.free, SLOTS)
        if ticket is None:
            self.check_that_nobody_could_start()
            return
        overdue = self.overdue_classes()
        self.check_order(ticket, overdue)
        self.queue.pop(ticket)
        self.offered.remove(ticket)
        self.running.append(ticket)
        self.last_start[ticket.priority] = self.now
        for priority in Priority:
            is_passed_over = priority in overdue and priority is not ticket.priority
            self.passed_over[priority] = self.passed_over[priority] + 1 if is_passed_over else 0

    @precondition(lambda self: self.running)
    @rule(data=st.data(), tokens=st.integers(0, 500))
    def produce(self, data: st.DataObject, tokens: int) -> None:
        self.queue.charge(data.draw(st.sampled_from(self.running)), tokens)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def find_in_cache(self, data: st.DataObject) -> None:
        ticket = data.draw(st.sampled_from(self.running))
        self.queue.refund(ticket, data.draw(st.integers(0, ticket.prompt_tokens)))

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        ticket = data.draw(st.sampled_from(self.running))
        self.running.remove(ticket)
        self.queue.release(ticket)

    @rule(ticket=consumes(fresh))
    def cancel(self, ticket: Ticket[int]) -> None:
        if ticket.is_waiting:
            self.queue.remove(ticket)
            (self.aside if ticket in self.aside else self.offered).remove(ticket)

    @rule(ticket=fresh)
    def set_aside(self, ticket: Ticket[int]) -> None:
        if ticket.state is TicketState.WAITING:
            self.queue.set_aside(ticket)
            self.offered.remove(ticket)
            self.aside.append(ticket)

    @rule()
    def bring_back(self) -> None:
        self.queue.bring_back(self.aside)
        self.offered += self.aside
        self.aside.clear()

    @invariant()
    def nobody_is_lost(self) -> None:
        waiting = self.offered + self.aside
        everybody = waiting + self.running
        assert self.queue.waiting == len(waiting)
        assert self.queue.running == len(self.running)
        assert self.queue.waiting_prompt_tokens == sum(ticket.prompt_tokens for ticket in waiting)
        assert self.queue.reserved_kv_blocks == sum(ticket.kv_blocks for ticket in everybody)
        views = self.queue.tenants()
        assert {view.tenant for view in views} == {ticket.tenant for ticket in everybody}
        assert sum(view.waiting for view in views) == len(waiting)
        assert sum(view.running for view in views) == len(self.running)

    @invariant()
    def no_class_stands_still(self) -> None:
        assert max(self.passed_over.values()) <= 1

    @invariant()
    def positions_are_within_the_queue(self) -> None:
        for ticket in self.offered:
            assert 1 <= self.queue.position(ticket) <= self.queue.waiting

    def teardown(self) -> None:
        """Everybody is started in the end."""
        self.bring_back()
        for ticket in self.running:
            self.queue.release(ticket)
        left = len(self.offered)
        for _ in range(left):
            self.now += AGEING_S
            head = self.queue.head(self.now, SLOTS, SLOTS)
            assert head is not None
            self.queue.pop(head)
            self.queue.release(head)
        assert (self.queue.waiting, self.queue.running, self.queue.reserved_kv_blocks) == (0, 0, 0)
        assert self.queue.tenants() == []

    def overdue_classes(self) -> list[Priority]:
        return [priority for priority in (Priority.STANDARD, Priority.BATCH) if self.is_overdue(priority)]

    def is_overdue(self, priority: Priority) -> bool:
        waiting = [ticket.enqueued_at for ticket in self.offered if ticket.priority is priority]
        if not waiting or not (priority is not Priority.BATCH or self.may_start_batch(is_overdue=True)):
            return False
        return self.now - max(min(waiting), self.last_start[priority]) >= AGEING_S

    def may_start_batch(self, *, is_overdue: bool) -> bool:
        has_none = not any(ticket.priority is Priority.BATCH for ticket in self.running)
        return self.free >= 2 or (is_overdue and has_none and self.free >= 1)

    def check_order(self, ticket: Ticket[int], overdue: list[Priority]) -> None:
        same_line = [t for t in self.offered if (t.tenant, t.priority) == (ticket.tenant, ticket.priority)]
        assert ticket is min(same_line, key=lambda t: t.sequence)
        if overdue:
            assert ticket.priority is overdue[0]
        else:
            assert ticket.priority is min(t.priority for t in self.offered)

    def check_that_nobody_could_start(self) -> None:
        if self.free:
            assert all(ticket.priority is Priority.BATCH for ticket in self.offered)
            assert not self.offered or not self.may_start_batch(is_overdue=bool(self.overdue_classes()))


TestFairQueueMachine = FairQueueMachine.TestCase
TestFairQueueMachine.settings = settings(stateful_step_count=60)


@given(
    st.lists(st.tuples(st.integers(1, 1000), st.integers(0, 500)), min_size=20, max_size=60),
    st.sampled_from([0.5, 1.0, 3.0]),
)
def test_two_tenants_who_always_wait_never_drift_apart(costs: list[tuple[int, int]], weight: float) -> None:
    queue = FairQueue[int](weights={"x": weight})
    served = {"x": 0.0, "y": 0.0}
    price = {"x": 1.0 / weight, "y": 1.0}
    for tenant in served:
        for prompt, output in costs:
            queue.push(output, tenant=tenant, priority=Priority.STANDARD, prompt_tokens=prompt, now=0.0)
    dearest = 1500 * max(price.values())

    while len({view.tenant for view in queue.tenants()}) == len(served):
        ticket = queue.head(0.0, 1, 1)
        assert ticket is not None
        queue.pop(ticket)
        queue.charge(ticket, ticket.item)
        queue.release(ticket)
        served[ticket.tenant] += (ticket.prompt_tokens + ticket.item) * price[ticket.tenant]
        assert abs(served["x"] - served["y"]) <= dearest
