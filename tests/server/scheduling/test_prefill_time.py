"""Learning how long prompts take."""

import random

import pytest
from inferwire_server.scheduling.prefill_time import PrefillTime


def test_knows_nothing_at_first() -> None:
    assert PrefillTime().predict_s(1000) == 0.0


def test_one_observation_already_scales_with_the_length() -> None:
    prefill = PrefillTime()
    prefill.observe(1000, 0.1)

    assert prefill.predict_s(2000) == pytest.approx(0.2)


def test_learns_the_fixed_part_and_the_rate() -> None:
    prefill, rng = PrefillTime(), random.Random(1)
    for _ in range(200):
        tokens = rng.randint(50, 2000)
        prefill.observe(tokens, 0.03 + tokens / 10_000)

    assert prefill.predict_s(0) == pytest.approx(0.03, abs=0.001)
    assert prefill.predict_s(1000) == pytest.approx(0.13, abs=0.001)
    assert prefill.deviation_s < 0.01


def test_never_predicts_that_longer_prompts_are_faster() -> None:
    prefill = PrefillTime()
    for tokens, seconds in ((100, 0.5), (1000, 0.1), (2000, 0.05)):
        prefill.observe(tokens, seconds)

    assert prefill.predict_s(0) <= prefill.predict_s(500) <= prefill.predict_s(4000)


def test_prompts_wholly_from_the_cache_have_a_time_too() -> None:
    prefill = PrefillTime()
    for _ in range(10):
        prefill.observe(0, 0.02)

    assert prefill.predict_s(0) == pytest.approx(0.02)


def test_follows_an_engine_that_slows_down() -> None:
    prefill, rng = PrefillTime(), random.Random(2)
    for slowness in (1.0, 3.0):
        for _ in range(300):
            tokens = rng.randint(50, 2000)
            prefill.observe(tokens, slowness * tokens / 10_000)

    assert prefill.predict_s(1000) == pytest.approx(0.3, rel=0.05)
