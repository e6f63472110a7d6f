"""When a second attempt may run beside a slow first one."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from inferwire.policy.hedge import Hedging
from inferwire.settings import HedgePolicy

POLICY = HedgePolicy(enabled=True)


def hedging(*times_s: float, prompt_bytes: int = 100, policy: HedgePolicy = POLICY) -> Hedging:
    one = Hedging(policy)
    for seconds in times_s:
        one.observe(prompt_bytes, seconds)
    return one


def test_the_delay_is_the_quantile_of_prompts_of_like_length() -> None:
    one = hedging(*(0.2 + 0.01 * number for number in range(100)))

    assert one.delay_s(100, 0.0) == pytest.approx(0.2 + 0.95)
    assert one.delay_s(1, 0.0) == one.delay_s(255, 0.0) == one.delay_s(100, 0.0)
    assert one.delay_s(1_000, 0.0) is None


def test_the_delay_is_never_shorter_than_its_floor() -> None:
    assert hedging(*[0.001] * 50).delay_s(100, 0.0) == 0.1


def test_nothing_is_hedged_of_which_little_is_known() -> None:
    assert hedging(*[0.2] * 19).delay_s(100, 0.0) is None
    assert hedging(*[0.2] * 20).delay_s(100, 0.0) == 0.2


def test_a_long_prompt_is_never_computed_twice() -> None:
    assert hedging(*[0.2] * 50, prompt_bytes=40_000).delay_s(40_000, 0.0) is None


def test_the_delay_is_taken_anew_every_few_seconds() -> None:
    one = hedging(*[0.2] * 50)
    assert one.delay_s(100, 0.0) == 0.2
    for _ in range(200):
        one.observe(100, 0.5)

    assert one.delay_s(100, 2.9) == 0.2
    assert one.delay_s(100, 3.0) == 0.5


@given(st.lists(st.booleans(), max_size=600), st.integers(0, 1_000))
def test_hedges_stay_within_their_share_of_requests(wanted: list[bool], seed: int) -> None:
    one, rng, now, hedges = Hedging(POLICY), Random(seed), 0.0, 0
    for wants in wanted:
        one.requested()
        now += rng.random()
        hedges += wants and one.withdraw(now)

    assert hedges <= 0.05 * len(wanted) + 1e-6


def test_a_quiet_time_saves_up_no_storm() -> None:
    one = Hedging(POLICY)
    for _ in range(10_000):
        one.requested()

    assert sum(one.withdraw(0.0) for _ in range(100)) == 10
