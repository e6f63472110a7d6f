"""What the pipeline is told, without a pipeline."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from inferwire_server.engines.openvino.generation_settings import mixed_seed

seeds = st.integers(0, 2**32 - 1)


@given(seed=seeds, index=st.integers(0, 1024), position=st.integers(0, 100_000))
def test_a_mixed_seed_is_an_unsigned_32_bit_number(seed: int, index: int, position: int) -> None:
    assert 0 <= mixed_seed(seed, index, position) < 2**32


@given(seed=seeds)
def test_outputs_of_one_seed_start_differently(seed: int) -> None:
    starts = {mixed_seed(seed, index, 0) for index in range(64)}

    assert len(starts) == 64


@given(st.sets(seeds, min_size=2, max_size=50), st.integers(0, 16))
def test_different_seeds_start_the_same_output_differently(several: set[int], index: int) -> None:
    starts = {mixed_seed(seed, index, 0) for seed in several}

    assert len(starts) == len(several)


def test_the_next_output_is_not_the_next_seed() -> None:
    assert not {mixed_seed(seed, 1, 0) for seed in range(100)} & {mixed_seed(seed, 0, 0) for seed in range(101)}
