"""Work on texts stays off the loop, in a bounded number of threads, and nobody waits for it past a deadline."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest
from inferwire_server.domain.errors import Expired, Overloaded
from inferwire_server.text.pool import TextPool

from tests.polling import until


class Gate:
    """Work that begins and then waits to be let go."""

    def __init__(self) -> None:
        self.opened = threading.Event()
        self.begun = 0

    def __call__(self) -> str:
        self.begun += 1
        self.opened.wait(30)
        return "done"


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.opened.set()


@pytest.fixture
def pool() -> Iterator[TextPool]:
    pool = TextPool(threads=1, max_waiting=1, clock=lambda: 100.0)
    yield pool
    pool.close()


async def test_work_runs_in_a_thread_of_its_own(pool: TextPool) -> None:
    assert await pool.run(threading.get_ident) != threading.get_ident()


async def test_work_that_holds_the_interpreter_takes_turns_in_one_thread() -> None:
    pool = TextPool(threads=4)
    threads = await asyncio.gather(*(pool.run(threading.get_ident, holds_lock=True) for _ in range(50)))
    assert len(set(threads)) == 1
    pool.close()


async def test_work_that_holds_the_interpreter_does_not_keep_other_work_waiting(pool: TextPool, gate: Gate) -> None:
    holding = asyncio.ensure_future(pool.run(gate, holds_lock=True))
    await until(lambda: gate.begun == 1)
    assert await pool.run(lambda: "other") == "other"
    gate.opened.set()
    assert await holding == "done"


async def test_what_the_work_raises_reaches_its_caller(pool: TextPool) -> None:
    with pytest.raises(ZeroDivisionError):
        await pool.run(lambda: 1 // 0)


async def test_work_whose_deadline_has_passed_never_begins(pool: TextPool, gate: Gate) -> None:
    with pytest.raises(Expired):
        await pool.run(gate, deadline=100.0)
    assert (pool.jobs, gate.begun) == (0, 0)


async def test_a_caller_is_answered_at_its_deadline_and_the_work_counts_until_it_is_done(
    pool: TextPool, gate: Gate
) -> None:
    with pytest.raises(Expired):
        await pool.run(gate, deadline=100.02)
    assert pool.jobs == 1
    gate.opened.set()
    await until(lambda: pool.jobs == 0)


async def test_work_that_waits_past_its_deadline_never_begins(pool: TextPool, gate: Gate) -> None:
    running = asyncio.ensure_future(pool.run(gate))
    await until(lambda: gate.begun == 1)
    with pytest.raises(Expired):
        await pool.run(gate, deadline=100.02)
    assert pool.jobs == 1
    gate.opened.set()
    assert await running == "done"
    assert gate.begun == 1


async def test_a_full_pool_refuses_at_once_and_says_when_to_come_again(pool: TextPool, gate: Gate) -> None:
    taken = [asyncio.ensure_future(pool.run(gate)) for _ in range(2)]
    await until(lambda: pool.jobs == 2)
    with pytest.raises(Overloaded) as refusal:
        await pool.run(gate)
    assert refusal.value.retry_after_s == 1.0
    gate.opened.set()
    assert await asyncio.gather(*taken) == ["done", "done"]
    assert await pool.run(gate) == "done"


async def test_a_caller_who_leaves_while_waiting_makes_room(pool: TextPool, gate: Gate) -> None:
    running = asyncio.ensure_future(pool.run(gate))
    await until(lambda: gate.begun == 1)
    waiting = asyncio.ensure_future(pool.run(gate))
    await until(lambda: pool.jobs == 2)
    waiting.cancel()
    await until(lambda: pool.jobs == 1)
    gate.opened.set()
    assert await running == "done"


async def test_a_timeout_inside_the_work_is_not_taken_for_the_deadline(pool: TextPool) -> None:
    def work() -> None:
        raise TimeoutError("inside")

    with pytest.raises(TimeoutError, match="inside"):
        await pool.run(work, deadline=200.0)
