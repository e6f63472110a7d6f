"""What the pipeline is told, without a pipeline."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from inferwire_server.domain.generation import Grammar, GrammarKind
from inferwire_server.engines.openvino.generation_settings import choices_grammar, mixed_seed, structured_output

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


def test_choices_become_quoted_alternatives_with_nothing_left_to_interpret() -> None:
    assert choices_grammar(['a"', "\\é"]) == 'root ::= "a\\U00000022" | "\\U0000005c\\U000000e9"'


@pytest.mark.parametrize(
    ("source", "passed_on"),
    [
        pytest.param("[^a-z\n\r]", r"[^a-z\n\r]", id="in a class"),
        pytest.param("\\\n", r"\n", id="escaped already"),
        pytest.param("\\\\\n", r"\\\n", id="after an escaped backslash"),
        pytest.param("[\\\n\\\\\n]", r"[\n\\\n]", id="in a class, escaped and after an escaped backslash"),
        pytest.param(r"\n[\]\d]\\", r"\n[\]\d]\\", id="none"),
        pytest.param(r"a.+\.[.\].]", r"a[^\n]+\.[.\].]", id="a dot is any character but a line break"),
    ],
)
def test_a_regex_is_rewritten_to_mean_the_usual(source: str, passed_on: str) -> None:
    assert structured_output(Grammar(kind=GrammarKind.REGEX, source=source)) == ("regex", passed_on)
