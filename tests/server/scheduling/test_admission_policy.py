"""What may wait, who must leave, and what refusals say."""

import pytest
from inferwire_server.domain.engine import Capabilities
from inferwire_server.domain.errors import InvalidRequest, Overloaded
from inferwire_server.domain.generation import Priority
from inferwire_server.scheduling.admission_policy import AdmissionPolicy, Bounds
from inferwire_server.scheduling.drain_rate import UNKNOWN_HINT_S, DrainRate
from inferwire_server.scheduling.fair_queue import FairQueue
from inferwire_server.scheduling.ticket import Ticket

from tests.server.scheduling.queue_driving import BATCH, INTERACTIVE, STANDARD, push, push_all

CONTEXT = 512
BLOCKS = 64


def make_policy(
    *,
    requests: int = 4,
    tokens: int = 100_000,
    kv_blocks: int | None = None,
    drain_rate: DrainRate | None = None,
) -> AdmissionPolicy:
    facts = Capabilities(
        request_fields=frozenset(),
        max_running=2,
        max_context_tokens=CONTEXT,
        kv_blocks=None if kv_blocks is None else BLOCKS,
        kv_block_tokens=None if kv_blocks is None else 16,
    )
    bounds = Bounds(waiting_requests=requests, waiting_prompt_tokens=tokens, reserved_kv_blocks=kv_blocks)
    return AdmissionPolicy(facts, bounds, drain_rate or DrainRate())


def check_pushed(
    policy: AdmissionPolicy, queue: FairQueue[str], ticket: Ticket[str], *, free: int = 0
) -> list[Ticket[str]]:
    return policy.check_pushed(queue, ticket, free_slots=free, total_slots=2, now=0.0)


def check_arrival(
    policy: AdmissionPolicy,
    queue: FairQueue[str],
    *,
    tenant: str = "t",
    priority: Priority = STANDARD,
    preparing: int = 0,
) -> None:
    policy.check_arrival(queue, tenant=tenant, priority=priority, preparing=preparing, now=0.0)


class TestBounds:
    def test_as_many_requests_wait_as_the_bound_says(self) -> None:
        policy, queue = make_policy(requests=3), FairQueue[str]()
        for name in "abc":
            assert check_pushed(policy, queue, push(queue, name)) == []

        with pytest.raises(Overloaded) as refusal:
            check_pushed(policy, queue, push(queue, "d"))

        assert (refusal.value.limit, refusal.value.actual) == (3, 4)

    def test_prompt_tokens_are_bounded_too(self) -> None:
        policy, queue = make_policy(requests=100, tokens=1000), FairQueue[str]()
        check_pushed(policy, queue, push(queue, "a", tokens=500))
        check_pushed(policy, queue, push(queue, "b", tokens=500))

        with pytest.raises(Overloaded, match="prompt tokens"):
            check_pushed(policy, queue, push(queue, "c", tokens=1))

    def test_kv_blocks_of_running_requests_count_too(self) -> None:
        policy, queue = make_policy(requests=100, kv_blocks=80), FairQueue[str]()
        running = push(queue, "a", kv_blocks=64)
        queue.pop(running)

        with pytest.raises(Overloaded, match="KV blocks"):
            check_pushed(policy, queue, push(queue, "b", kv_blocks=17))

    def test_what_can_be_started_at_once_does_not_wait(self) -> None:
        policy, queue = make_policy(requests=1), FairQueue[str]()
        queue.pop(push(queue, "running"))
        blocked = push(queue, "blocked", priority=BATCH)

        urgent = push(queue, "urgent", priority=INTERACTIVE)

        assert blocked.is_waiting
        assert check_pushed(policy, queue, urgent, free=1) == []

    def test_a_free_slot_does_not_make_kv_blocks(self) -> None:
        policy, queue = make_policy(kv_blocks=64), FairQueue[str]()
        queue.pop(push(queue, "running", kv_blocks=60))

        with pytest.raises(Overloaded, match="KV blocks"):
            check_pushed(policy, queue, push(queue, "next", kv_blocks=5), free=1)

    def test_bounds_too_small_for_the_engine_are_refused_at_the_start(self) -> None:
        with pytest.raises(ValueError, match="at least the context, 512"):
            make_policy(tokens=CONTEXT - 1)
        with pytest.raises(ValueError, match="at least the engine's own, 64"):
            make_policy(kv_blocks=BLOCKS - 1)
        with pytest.raises(ValueError, match="at least 1"):
            make_policy(requests=0)


class TestArrival:
    def test_a_full_queue_refuses_before_any_work(self) -> None:
        policy, queue = make_policy(requests=2), FairQueue[str]()
        push_all(queue, ["a", "b"])

        with pytest.raises(Overloaded):
            check_arrival(policy, queue)

    def test_requests_in_preparation_are_bounded_too(self) -> None:
        policy, queue = make_policy(requests=2), FairQueue[str]()

        check_arrival(policy, queue, preparing=1)
        with pytest.raises(Overloaded):
            check_arrival(policy, queue, preparing=2)

    def test_a_full_queue_lets_those_in_who_have_a_claim(self) -> None:
        policy, queue = make_policy(requests=4), FairQueue[str]()
        push_all(queue, ["h"] * 4, tenant="heavy")

        check_arrival(policy, queue, tenant="light")
        check_arrival(policy, queue, tenant="heavy", priority=INTERACTIVE)
        with pytest.raises(Overloaded):
            check_arrival(policy, queue, tenant="light", priority=BATCH)


class TestDisplacement:
    def test_the_newest_of_the_heaviest_tenant_makes_room(self) -> None:
        policy, queue = make_policy(requests=5), FairQueue[str]()
        push_all(queue, ["m1", "m2"], tenant="medium")
        push_all(queue, ["h1", "h2", "h3"], tenant="heavy")

        displaced = check_pushed(policy, queue, push(queue, "l", tenant="light"))

        assert [ticket.item for ticket in displaced] == ["h3"]

    def test_a_tenant_at_its_share_displaces_nobody(self) -> None:
        policy, queue = make_policy(requests=4), FairQueue[str]()
        push_all(queue, ["a1", "a2"], tenant="a")
        push_all(queue, ["b1", "b2"], tenant="b")

        with pytest.raises(Overloaded):
            check_pushed(policy, queue, push(queue, "b3", tenant="b"))

    def test_shares_follow_the_weights(self) -> None:
        policy, queue = make_policy(requests=4), FairQueue[str](weights={"three": 3.0})
        push_all(queue, ["1"] * 2, tenant="one")
        push_all(queue, ["3"] * 2, tenant="three")

        displaced = check_pushed(policy, queue, push(queue, "third", tenant="three"))

        assert [ticket.tenant for ticket in displaced] == ["one"]

    def test_a_tenants_only_request_stays(self) -> None:
        policy, queue = make_policy(requests=2), FairQueue[str]()
        push(queue, "a", tenant="a", tokens=500)
        push(queue, "b", tenant="b", tokens=500)

        with pytest.raises(Overloaded):
            check_pushed(policy, queue, push(queue, "c", tenant="c", tokens=1))

    def test_lower_classes_make_room_first(self) -> None:
        policy, queue = make_policy(requests=6), FairQueue[str]()
        push_all(queue, ["s"] * 3, tenant="x", priority=STANDARD)
        push_all(queue, ["n1", "n2", "n3"], tenant="y", priority=BATCH)

        displaced = check_pushed(policy, queue, push(queue, "p", tenant="z", priority=INTERACTIVE))

        assert [ticket.item for ticket in displaced] == ["n3"]

    def test_a_class_keeps_an_eighth_of_the_places(self) -> None:
        policy, queue = make_policy(requests=16), FairQueue[str]()
        push_all(queue, ["n"] * 2, tenant="y", priority=BATCH)
        push_all(queue, ["p"] * 14, tenant="z", priority=INTERACTIVE)

        with pytest.raises(Overloaded):
            check_pushed(policy, queue, push(queue, "p", tenant="z", priority=INTERACTIVE))

    def test_several_leave_when_one_does_not_free_enough(self) -> None:
        policy, queue = make_policy(requests=100, tokens=1000), FairQueue[str]()
        push_all(queue, ["h"] * 10, tenant="heavy", tokens=100)

        displaced = check_pushed(policy, queue, push(queue, "l", tenant="light", tokens=250))

        assert len(displaced) == 3

    def test_who_leaves_for_one_bound_counts_for_the_other(self) -> None:
        policy, queue = make_policy(requests=10, tokens=1000), FairQueue[str]()
        push_all(queue, ["h"] * 10, tenant="heavy", tokens=100)

        displaced = check_pushed(policy, queue, push(queue, "l", tenant="light", tokens=150))

        assert len(set(displaced)) == len(displaced) == 2

    def test_nobody_leaves_when_it_would_not_be_enough(self) -> None:
        policy, queue = make_policy(requests=100, tokens=1000), FairQueue[str]()
        push_all(queue, ["h"] * 10, tenant="heavy", tokens=100)

        with pytest.raises(Overloaded):
            check_pushed(policy, queue, push(queue, "l", tenant="light", tokens=512))

        assert queue.waiting == 11


class TestNeverFitting:
    def test_a_request_beyond_all_kv_blocks_is_the_callers_error(self) -> None:
        policy = make_policy(kv_blocks=BLOCKS)

        assert policy.kv_blocks(prompt_tokens=256, max_output_tokens=256, count=2) == BLOCKS
        with pytest.raises(InvalidRequest, match="may have 336 tokens together"):
            policy.kv_blocks(prompt_tokens=256, max_output_tokens=256, count=3)

    def test_an_engine_without_blocks_reserves_none(self) -> None:
        assert make_policy().kv_blocks(prompt_tokens=256, max_output_tokens=256, count=9) == 0


class TestHints:
    def test_every_refusal_says_when_to_come_back(self) -> None:
        error = make_policy().overloaded(FairQueue[str](), now=0.0)

        assert error.retry_after_s == UNKNOWN_HINT_S

    def test_the_hint_is_the_time_until_half_of_the_places_are_free(self) -> None:
        drain_rate = DrainRate()
        for second in range(30):
            drain_rate.released(float(second), waiting=8)
        policy, queue = make_policy(requests=8, drain_rate=drain_rate), FairQueue[str]()
        push_all(queue, ["a"] * 8)

        error = policy.overloaded(queue, now=29.0)

        assert error.retry_after_s == pytest.approx(4.0, rel=0.01)
