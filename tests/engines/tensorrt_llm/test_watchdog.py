"""When the engine counts as dead, and that the process ends then."""

from __future__ import annotations

import threading
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from inferwire_server.engines.tensorrt_llm.vital_signs import why_dead
from inferwire_server.engines.tensorrt_llm.watchdog import EXIT_CODE, Bounds, Observation, Watchdog, diagnose

BOUNDS = Bounds(silence_s=30.0, loop_stuck_s=10.0, exit_s=0.05, interval_s=0.005)
ALIVE = Observation(now=1000.0, last_beat=999.9)
BOUND_S = 20.0


@pytest.mark.parametrize(
    "seen",
    [
        ALIVE,
        replace(ALIVE, running_since=971.0),
        replace(ALIVE, last_beat=991.0),
        replace(ALIVE, last_beat=None),
        replace(ALIVE, unanswered=2, unanswered_since=0.0),
        replace(ALIVE, unanswered=50, unanswered_since=999.0),
    ],
    ids=["idle", "a slow step", "a busy loop", "no loop yet", "two cancelled", "a burst"],
)
def test_patience_is_not_over_too_soon(seen: Observation) -> None:
    assert diagnose(seen, BOUNDS) == ""


@pytest.mark.parametrize(
    ("seen", "reason"),
    [
        (replace(ALIVE, why_dead="a worker process has ended"), "a worker process has ended"),
        (replace(ALIVE, running_since=969.0), "no step for 31.0 s while requests run"),
        (replace(ALIVE, last_beat=989.0), "its event loop has not answered for 11.0 s"),
        (replace(ALIVE, unanswered=3, unanswered_since=969.0), "3 requests without any answer"),
    ],
    ids=["admitted", "silent", "stuck", "cancelled before they were answered"],
)
def test_each_kind_of_death_is_named(seen: Observation, reason: str) -> None:
    assert diagnose(seen, BOUNDS) == reason


class Witness:
    """What the watchdog told, and the exit it asked for."""

    def __init__(self) -> None:
        self.deaths: list[str] = []
        self.codes: list[int] = []
        self.exited = threading.Event()

    def exit(self, code: int) -> None:
        self.codes.append(code)
        self.exited.set()

    def watchdog(self, observe: Any = lambda: ALIVE, bounds: Bounds = BOUNDS) -> Watchdog:
        return Watchdog(observe=observe, on_death=self.deaths.append, bounds=bounds, exit_process=self.exit)


def test_a_death_is_told_once_and_ends_the_process() -> None:
    witness = Witness()
    watchdog = witness.watchdog(lambda: replace(ALIVE, why_dead="gone"))
    watchdog.start()
    assert witness.exited.wait(BOUND_S)
    watchdog.declare_dead("again")
    assert (witness.deaths, witness.codes) == (["gone"], [EXIT_CODE])


def test_the_process_ends_even_where_telling_blocks_for_ever() -> None:
    witness = Witness()
    blocked = threading.Event()
    watchdog = Watchdog(
        observe=lambda: replace(ALIVE, why_dead="gone"),
        on_death=lambda _: blocked.wait(BOUND_S),
        bounds=BOUNDS,
        exit_process=witness.exit,
    )
    watchdog.start()
    assert witness.exited.wait(BOUND_S)
    blocked.set()


def test_a_look_that_fails_does_not_end_the_watch() -> None:
    witness = Witness()
    looks = iter([False, True])

    def observe() -> Observation:
        if not next(looks):
            raise RuntimeError("torn read")
        return replace(ALIVE, why_dead="gone")

    witness.watchdog(observe).start()
    assert witness.exited.wait(BOUND_S)


def test_an_exit_can_be_brought_forward_but_not_put_off() -> None:
    witness = Witness()
    watchdog = witness.watchdog(bounds=replace(BOUNDS, exit_s=3600.0))
    watchdog.declare_dead("gone")
    watchdog.exit_within(0.01)
    watchdog.exit_within(3600.0)
    assert witness.exited.wait(BOUND_S)
    assert witness.codes == [EXIT_CODE]


def test_no_death_no_exit() -> None:
    witness = Witness()
    looks = threading.Semaphore(0)

    def observe() -> Observation:
        looks.release()
        return ALIVE

    watchdog = witness.watchdog(observe)
    watchdog.start()
    assert all(looks.acquire(timeout=BOUND_S) for _ in range(5))
    watchdog.stop()
    assert (witness.deaths, witness.codes) == ([], [])


@pytest.mark.parametrize(
    ("llm", "reason"),
    [
        (SimpleNamespace(), ""),
        (SimpleNamespace(_executor=SimpleNamespace()), ""),
        (SimpleNamespace(_executor=None), "it has been shut down"),
        (SimpleNamespace(_executor=SimpleNamespace(is_shutdown=lambda: True)), "it has begun to shut itself down"),
        (SimpleNamespace(_executor=SimpleNamespace(is_shutdown=lambda: 1 / 0)), ""),
        (SimpleNamespace(_executor=SimpleNamespace(_fatal_error=ValueError("x"))), "fatal error ValueError"),
        (SimpleNamespace(_executor=SimpleNamespace(check_health=lambda: False)), "its own health check fails"),
        (SimpleNamespace(_check_health=lambda: False, _executor=SimpleNamespace()), "its own health check fails"),
        (
            SimpleNamespace(_executor=SimpleNamespace(mpi_futures=[SimpleNamespace(done=lambda: True)])),
            "a worker process has ended",
        ),
        (SimpleNamespace(_executor=SimpleNamespace(mpi_futures=[SimpleNamespace(done=lambda: False)])), ""),
    ],
)
def test_signs_are_read_where_they_are_shown(llm: object, reason: str) -> None:
    assert why_dead(llm) == reason
