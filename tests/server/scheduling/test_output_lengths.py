"""Learning how long outputs turn out to be."""

import random

import pytest
from inferwire_server.scheduling.output_lengths import OutputLengths


def learnt(*lengths: int) -> OutputLengths:
    lengths_seen = OutputLengths()
    for length in lengths:
        lengths_seen.observe(length)
    return lengths_seen


def test_everything_survives_its_beginning() -> None:
    assert learnt(5, 50).survival(0) == 1.0
    assert learnt(5, 50).survival(-3) == 1.0


def test_nothing_outlives_the_longest() -> None:
    assert learnt(5, 50, 100).survival(110) == 0.0


def test_short_lengths_are_kept_exactly() -> None:
    lengths = learnt(*[3] * 50, *[7] * 50)

    assert lengths.survival(2) == 1.0
    assert lengths.survival(3) == pytest.approx(0.5, abs=0.1)
    assert lengths.survival(7) == 0.0


@pytest.mark.parametrize("length", [0, 1, 15, 16, 100, 400, 2048, 3_000_000])
def test_equal_lengths_have_about_that_mean(length: int) -> None:
    expected = min(length, 2**21)

    assert learnt(*[length] * 20).mean() == pytest.approx(expected, rel=0.1, abs=0.6)


def test_a_geometric_distribution_is_learnt() -> None:
    rng = random.Random(1)
    lengths = learnt(*(1 + int(rng.expovariate(0.01)) for _ in range(5000)))

    assert lengths.mean() == pytest.approx(100, rel=0.15)
    assert lengths.survival(100) == pytest.approx(0.37, abs=0.07)


def test_old_lengths_are_forgotten() -> None:
    lengths = learnt(*[400] * 1000, *[10] * 1000)

    assert lengths.mean() == pytest.approx(10, rel=0.3)


def test_weights_stay_finite_for_ever() -> None:
    lengths = learnt(*[10] * 20_000)

    assert lengths.mean() == pytest.approx(9.5, abs=0.6)
