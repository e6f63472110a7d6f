"""Deadlines, handed from call to call."""

from __future__ import annotations

import pytest
from inferwire.policy.deadline import Deadline


@pytest.mark.parametrize(
    ("timeout_s", "default_s", "incoming", "at"),
    [
        (5.0, 120.0, None, 105.0),
        (None, 120.0, None, 220.0),
        (None, None, None, None),
        (5.0, 120.0, Deadline(102.0), 102.0),
        (5.0, 120.0, Deadline(300.0), 105.0),
        (None, None, Deadline(102.0), 102.0),
        (5.0, 120.0, Deadline(), 105.0),
    ],
)
def test_a_call_never_outlives_the_one_that_it_serves(
    timeout_s: float | None, default_s: float | None, incoming: Deadline | None, at: float | None
) -> None:
    made = Deadline.for_call(100.0, timeout_s=timeout_s, default_s=default_s, incoming=incoming)

    assert made.at == at


def test_what_remains_is_never_negative() -> None:
    assert Deadline(10.0).remaining(4.0) == 6.0
    assert Deadline(10.0).remaining(12.0) == 0.0
    assert Deadline().remaining(12.0) is None


def test_it_has_passed_from_its_moment_on() -> None:
    assert not Deadline(10.0).has_passed(9.999)
    assert Deadline(10.0).has_passed(10.0)
    assert not Deadline().has_passed(1e12)


@pytest.mark.parametrize(
    ("delay_s", "first_token_s", "fits"),
    [(0.0, 0.0, True), (0.97, 0.0, True), (0.99, 0.0, False), (0.5, 0.5, True), (0.5, 0.6, False)],
)
def test_an_attempt_needs_time_for_its_delay_and_a_first_token(
    delay_s: float, first_token_s: float, fits: bool
) -> None:
    assert Deadline(1.0).leaves_room(0.0, delay_s=delay_s, first_token_s=first_token_s) is fits


def test_without_an_end_there_is_always_room() -> None:
    assert Deadline().leaves_room(0.0, delay_s=1e9, first_token_s=1e9)
