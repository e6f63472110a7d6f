"""Who goes next."""

import pytest
from inferwire_server.scheduling.fair_queue import FairQueue, TenantView

from tests.server.scheduling.queue_driving import (
    BATCH,
    INTERACTIVE,
    STANDARD,
    push,
    push_all,
    start,
    starting_order,
)


def test_first_come_first_served_inside_a_tenant() -> None:
    queue = FairQueue[str]()
    push_all(queue, ["a", "b", "c"])

    assert starting_order(queue) == ["a", "b", "c"]


def test_classes_go_in_order_of_rank() -> None:
    queue = FairQueue[str]()
    push(queue, "nightly", priority=BATCH)
    push(queue, "service", priority=STANDARD)
    push(queue, "person", priority=INTERACTIVE)

    assert starting_order(queue) == ["person", "service", "nightly"]


def test_an_empty_queue_has_no_head() -> None:
    assert FairQueue[str]().head(0.0, 4, 4) is None


def test_nobody_is_started_without_a_free_slot() -> None:
    queue = FairQueue[str]()
    push(queue, "a")

    assert queue.head(0.0, 0, 4) is None


def test_asking_for_the_head_changes_nothing() -> None:
    queue = FairQueue[str]()
    push_all(queue, ["a", "b"])

    assert [queue.head(0.0, 4, 4) for _ in range(3)] == [queue.head(0.0, 4, 4)] * 3
    assert queue.waiting == 2


def test_a_request_for_several_slots_is_not_overtaken_while_it_waits_for_them() -> None:
    queue = FairQueue[str]()
    push(queue, "four outputs", slots=4)
    push(queue, "one output")

    assert queue.head(0.0, 3, 8) is None
    assert start(queue, free=4, total=8).item == "four outputs"


class TestTenants:
    def test_the_one_with_fewer_tokens_served_goes_next(self) -> None:
        queue = FairQueue[str](burst_tokens=0)
        push_all(queue, ["long", "long too"], tenant="big", tokens=1000)
        push_all(queue, ["1", "2", "3"], tenant="small", tokens=100)

        assert starting_order(queue) == ["long", "1", "2", "3", "long too"]

    def test_output_tokens_count_as_prompt_tokens_do(self) -> None:
        queue = FairQueue[str](burst_tokens=0)
        push_all(queue, ["x1", "x2"], tenant="x", tokens=10)
        push_all(queue, ["y1", "y2"], tenant="y", tokens=200)

        queue.charge(start(queue), 500)

        assert [start(queue).item for _ in range(3)] == ["y1", "y2", "x2"]

    def test_twice_the_weight_is_twice_the_tokens(self) -> None:
        queue = FairQueue[str](weights={"two": 2.0})
        push_all(queue, ["1"] * 30, tenant="one")
        push_all(queue, ["2"] * 60, tenant="two")

        first_thirty = starting_order(queue)[:30]

        assert first_thirty.count("2") == pytest.approx(20, abs=1)

    def test_a_refund_gives_the_turn_back(self) -> None:
        queue = FairQueue[str](burst_tokens=0)
        push_all(queue, ["x1", "x2"], tenant="x", tokens=1000)
        push_all(queue, ["y1", "y2"], tenant="y", tokens=300)
        cached = start(queue)

        queue.refund(cached, 900)

        assert [start(queue).item for _ in range(3)] == ["y1", "x2", "y2"]

    def test_idleness_earns_no_credit_beyond_the_burst(self) -> None:
        queue = FairQueue[str](burst_tokens=300)
        push(queue, "early", tenant="light")
        queue.release(start(queue))
        heavy = push_all(queue, ["h"] * 100, tenant="heavy")
        for _ in range(50):
            queue.release(start(queue))
        push_all(queue, ["l"] * 10, tenant="light")

        order = [start(queue).item for _ in range(8)]

        assert len(heavy) == 100
        assert order.count("l") in range(4, 7)

    def test_cancelling_does_not_erase_what_was_served(self) -> None:
        queue = FairQueue[str](burst_tokens=0)
        _, waiting = push_all(queue, ["x1", "x2"], tenant="x", tokens=1000)
        push_all(queue, ["y1", "y2", "y3"], tenant="y", tokens=100)
        queue.release(start(queue))
        queue.remove(waiting)
        push(queue, "x again", tenant="x", tokens=1000)

        assert starting_order(queue) == ["y1", "y2", "y3", "x again"]

    def test_idle_tenants_are_forgotten(self) -> None:
        queue = FairQueue[str]()
        for number in range(5000):
            push(queue, "once", tenant=f"tenant {number}")
            push(queue, "always", tenant="busy", tokens=2000)
            queue.release(start(queue))
            queue.release(start(queue))
            push(queue, "keeps the class busy", tenant="busy")

        kept = len(queue._classes[STANDARD].flows)

        assert kept < 100


class TestBatch:
    def test_leaves_the_last_slot_to_the_classes_above(self) -> None:
        queue = FairQueue[str]()
        push(queue, "nightly", priority=BATCH)

        assert queue.head(0.0, 1, 8) is None

        person = push(queue, "person", priority=INTERACTIVE)
        assert queue.head(0.0, 1, 8) is person

    def test_fills_every_slot_but_the_last(self) -> None:
        queue = FairQueue[str]()
        push_all(queue, ["n"] * 10, priority=BATCH)

        started = 0
        while (ticket := queue.head(0.0, 8 - started, 8)) is not None:
            queue.pop(ticket)
            started += 1

        assert started == 7

    def test_gets_the_only_slot_of_a_small_engine(self) -> None:
        queue = FairQueue[str]()
        nightly = push(queue, "nightly", priority=BATCH)

        assert queue.head(0.0, 1, 1) is nightly


class TestAgeing:
    def test_a_class_that_stood_still_overtakes_once(self) -> None:
        queue = FairQueue[str](ageing_s=5.0)
        push_all(queue, ["service 1", "service 2"], priority=STANDARD, now=1.0)
        push_all(queue, ["person"] * 5, priority=INTERACTIVE, now=1.0)

        before = start(queue, now=5.9).item
        after = [start(queue, now=6.0).item for _ in range(3)]

        assert before == "person"
        assert after == ["service 1", "person", "person"]

    def test_both_lower_classes_go_within_two_starts(self) -> None:
        queue = FairQueue[str](ageing_s=5.0)
        push(queue, "nightly", priority=BATCH)
        push(queue, "service", priority=STANDARD)
        push_all(queue, ["person"] * 5, priority=INTERACTIVE)

        assert {start(queue, now=5.0).item for _ in range(2)} == {"service", "nightly"}

    def test_batch_that_stood_still_may_take_the_last_slot(self) -> None:
        queue = FairQueue[str](ageing_s=5.0)
        nightly = push(queue, "nightly", priority=BATCH)

        assert queue.head(4.9, 1, 8) is None
        assert queue.head(5.0, 1, 8) is nightly

    def test_batch_that_runs_never_takes_the_last_slot(self) -> None:
        queue = FairQueue[str](ageing_s=5.0)
        push_all(queue, ["first", "second"], priority=BATCH)
        start(queue, free=8, total=8)

        assert queue.head(60.0, 1, 8) is None


class TestLeaving:
    def test_a_removed_request_is_never_started(self) -> None:
        queue = FairQueue[str]()
        tickets = push_all(queue, ["a", "b", "c"])

        queue.remove(tickets[1])

        assert starting_order(queue) == ["a", "c"]

    def test_a_started_request_cannot_be_removed(self) -> None:
        queue = FairQueue[str]()
        push(queue, "a")
        ticket = start(queue)

        with pytest.raises(ValueError, match="running"):
            queue.remove(ticket)

    def test_slots_are_released_once(self) -> None:
        queue = FairQueue[str]()
        push(queue, "a")
        ticket = start(queue)
        queue.release(ticket)

        with pytest.raises(ValueError, match="gone"):
            queue.release(ticket)


class TestSettingAside:
    def test_others_go_first_until_it_is_brought_back(self) -> None:
        queue = FairQueue[str]()
        first, *_ = push_all(queue, ["a", "b", "c", "d"])
        queue.set_aside(first)
        overtaking = start(queue).item

        queue.bring_back([first])

        assert overtaking == "b"
        assert starting_order(queue) == ["a", "c", "d"]

    def test_it_goes_on_counting_as_waiting(self) -> None:
        queue = FairQueue[str]()
        ticket = push(queue, "a", tokens=70)

        queue.set_aside(ticket)

        assert (queue.waiting, queue.waiting_prompt_tokens, queue.head(0.0, 4, 4)) == (1, 70, None)

    def test_it_can_leave_meanwhile(self) -> None:
        queue = FairQueue[str]()
        ticket = push(queue, "a")
        queue.set_aside(ticket)

        queue.remove(ticket)
        queue.bring_back([ticket])

        assert queue.waiting == 0
        assert queue.head(0.0, 4, 4) is None


class TestViews:
    def test_counts_follow_every_change_at_once(self) -> None:
        queue = FairQueue[str]()
        tickets = push_all(queue, ["a", "b", "c"], tokens=50, kv_blocks=4)
        queue.remove(tickets[2])
        running = start(queue)

        seen = (queue.waiting, queue.waiting_prompt_tokens, queue.running, queue.reserved_kv_blocks)
        queue.release(running)

        assert seen == (1, 50, 1, 8)
        assert (queue.running, queue.reserved_kv_blocks) == (0, 4)

    def test_a_tenant_is_seen_over_all_classes(self) -> None:
        queue = FairQueue[str]()
        push(queue, "a", tenant="x", priority=INTERACTIVE, tokens=10)
        start(queue)
        push(queue, "b", tenant="x", priority=BATCH, tokens=30)

        assert queue.tenants() == [TenantView(tenant="x", waiting=1, waiting_prompt_tokens=30, running=1)]
        assert (queue.waiting_in(BATCH), queue.waiting_in(INTERACTIVE)) == (1, 0)

    def test_position_counts_everybody_who_goes_before(self) -> None:
        queue = FairQueue[str]()
        push_all(queue, ["p"] * 2, tenant="p", priority=INTERACTIVE)
        push_all(queue, ["a"] * 3, tenant="a")
        last = push(queue, "b", tenant="b")

        assert queue.position(last) == 2 + 1 + 1
        assert queue.ahead_of_newcomer("b", STANDARD).requests == 2 + 1 + 2
        assert queue.ahead_of_newcomer("b", INTERACTIVE).requests in (1, 2)

    def test_a_newcomer_of_a_flooding_tenant_is_behind_its_flood(self) -> None:
        queue = FairQueue[str]()
        push_all(queue, ["h"] * 50, tenant="heavy")

        assert queue.ahead_of_newcomer("heavy", STANDARD).requests == 50
        assert queue.ahead_of_newcomer("light", STANDARD).requests <= 1
