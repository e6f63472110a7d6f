"""The cursor over cumulative lists: nothing lost, nothing twice, no end id among the tokens."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from inferwire_server.domain.generation import FinishReason
from inferwire_server.engines.tensorrt_llm.cursor import OutOfVocabulary, OutputCursor

ENDS = frozenset({2, 7})
STOPS = frozenset({50, 51})


@dataclass
class Output:
    """One output of the engine, changed in place from step to step."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[Any] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: int | str | None = None


@dataclass
class Candidate:
    logprob: float
    rank: int | None = None


def cursor(top_logprobs: int | None = None, ends: frozenset[int] = ENDS) -> OutputCursor:
    return OutputCursor(end_token_ids=ends, stop_token_ids=STOPS, vocabulary_size=100, top_logprobs=top_logprobs)


def read(follower: OutputCursor, output: Output, *steps: list[int]) -> list[int]:
    """Every token the cursor gives while the list grows by the steps."""
    tokens: list[int] = []
    for step in steps:
        output.token_ids.extend(step)
        delta = follower.advance(output)
        tokens += delta.token_ids if delta else []
    return tokens


@given(st.lists(st.lists(st.integers(60, 99), max_size=4), max_size=12))
def test_deltas_add_up_to_the_whole_output(steps: list[list[int]]) -> None:
    output = Output()
    assert read(cursor(), output, *steps) == output.token_ids


@given(st.lists(st.integers(60, 99), max_size=6), st.sampled_from(sorted(ENDS | STOPS)), st.lists(st.integers(0, 99)))
def test_nothing_passes_an_end_or_stop_id(before: list[int], end: int, after: list[int]) -> None:
    assert read(cursor(), Output(), [*before, end], after) == before


def test_a_delta_is_a_copy_of_a_list_that_goes_on_growing() -> None:
    follower, output = cursor(), Output([60])
    first = follower.advance(output)
    output.token_ids.append(61)
    assert first is not None
    assert first.token_ids == [60]


def test_a_list_that_shrinks_at_its_stop_gives_nothing_more() -> None:
    follower, output = cursor(), Output([60, 61, 50])
    first = follower.advance(output)
    output.token_ids = [60, 61]
    output.finish_reason, output.stop_reason = "stop", 50

    assert first is not None
    assert first.token_ids == [60, 61]
    assert follower.advance(output) is None
    finished = follower.finish(output, 0)
    assert finished is not None
    assert (finished.reason, finished.stop_token_id, finished.end_token_id) == (FinishReason.STOP, 50, None)


def test_a_list_that_shrinks_below_what_was_given_is_not_read_again() -> None:
    follower, output = cursor(), Output([60, 61, 62])
    follower.advance(output)
    output.token_ids = [60, 61]
    assert follower.advance(output) is None
    assert read(follower, output, [62], [63]) == [63]


@pytest.mark.parametrize("end", sorted(ENDS))
def test_an_end_id_left_in_the_list_ends_the_output_and_is_named(end: int) -> None:
    follower, output = cursor(), Output()
    assert read(follower, output, [60, end]) == [60]
    output.finish_reason = "stop"
    finished = follower.finish(output, 3)
    assert finished is not None
    assert (finished.end_token_id, finished.stop_token_id, finished.cached_tokens) == (end, None, 3)


def test_a_stop_id_in_the_last_place_is_a_stop_although_the_engine_says_length() -> None:
    follower, output = cursor(), Output()
    read(follower, output, [60, 51])
    output.finish_reason = "length"
    finished = follower.finish(output, None)
    assert finished is not None
    assert (finished.reason, finished.stop_token_id) == (FinishReason.STOP, 51)


def test_an_end_id_that_was_cut_off_unseen_is_the_engines_own() -> None:
    follower, output = cursor(), Output([60])
    follower.advance(output)
    output.finish_reason = "stop"
    finished = follower.finish(output, None)
    assert finished is not None
    assert finished.end_token_id == min(ENDS)


def test_a_stop_id_that_was_cut_off_unseen_is_named_by_the_engine() -> None:
    follower, output = cursor(), Output([60], finish_reason="stop", stop_reason=51)
    follower.advance(output)
    finished = follower.finish(output, None)
    assert finished is not None
    assert finished.stop_token_id == 51


@pytest.mark.parametrize("reason", [None, "cancelled", "timeout", "not_finished"])
def test_any_other_reason_is_no_ordinary_end(reason: str | None) -> None:
    assert cursor().finish(Output([60], finish_reason=reason), None) is None


def test_end_ids_are_tokens_where_they_are_ignored() -> None:
    assert read(cursor(ends=frozenset()), Output(), [60, 2, 61, 7]) == [60, 2, 61, 7]


@pytest.mark.parametrize("strange", [-1, 100, 10**9])
def test_an_id_outside_the_vocabulary_is_a_fault(strange: int) -> None:
    with pytest.raises(OutOfVocabulary):
        read(cursor(), Output(), [60, strange])


def test_logprobs_keep_step_with_their_tokens() -> None:
    follower = cursor(top_logprobs=2)
    output = Output([60], [{60: Candidate(-0.1, 1), 61: Candidate(-2.0, 2), 62: Candidate(-3.0, 3)}])
    follower.advance(output)
    output.token_ids += [61, 2]
    output.logprobs += [{63: Candidate(-0.2, 1), 60: Candidate(-1.0, 2)}, {2: Candidate(0.0, 1)}]
    delta = follower.advance(output)

    assert delta is not None
    (entry,) = delta.logprobs
    assert (entry.token.token_id, entry.token.logprob) == (61, None)
    assert [(each.token_id, each.logprob) for each in entry.top] == [(63, -0.2), (60, -1.0)]


@pytest.mark.parametrize("entry", [{60: Candidate(-0.5, 1)}, -0.5])
def test_logprobs_come_as_candidates_or_as_plain_numbers(entry: object) -> None:
    delta = cursor(top_logprobs=0).advance(Output([60], [entry]))
    assert delta is not None
    assert delta.logprobs[0].token.logprob == -0.5
    assert delta.logprobs[0].top == ()


@pytest.mark.parametrize("value", [float("-inf"), float("nan")])
def test_a_logprob_that_is_no_number_is_unknown(value: float) -> None:
    delta = cursor(top_logprobs=0).advance(Output([60], [value]))
    assert delta is not None
    assert delta.logprobs[0].token.logprob is None


def test_missing_logprobs_are_unknown() -> None:
    delta = cursor(top_logprobs=0).advance(Output([60, 61], [-0.5]))
    assert delta is not None
    assert [entry.token.logprob for entry in delta.logprobs] == [-0.5, None]
