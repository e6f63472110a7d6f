"""Exactly-once streams, one event at a time."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from inferwire.errors import PartialOutput, StreamBroken, StreamDiverged, StreamGap, StreamRepeat, StreamTruncated
from inferwire.policy.delivery import (
    Continuation,
    Delivery,
    HeldOutput,
    StartedFacts,
    Trim,
    Verdict,
    Violation,
    ViolationKind,
)
from inferwire.policy.resume import ExactlyOnce
from inferwire.settings import ResumeMode

DELIVER, DROP = Delivery.DELIVER, Delivery.DROP
FACTS = StartedFacts(model_fingerprint="f1", prompt_digest=b"p", seed=42)
STOP = 1


def begun(
    *,
    mode: ResumeMode = ResumeMode.SAME_MODEL,
    outputs: int = 1,
    wants_token_ids: bool = False,
    wants_progress: bool = False,
    held: Sequence[HeldOutput] = (),
) -> ExactlyOnce:
    stream = ExactlyOnce(
        mode=mode, outputs=outputs, wants_token_ids=wants_token_ids, wants_progress=wants_progress, held=held
    )
    stream.begin_attempt()
    assert stream.started(FACTS) is DELIVER
    return stream


def hear(stream: ExactlyOnce, offset: int, text: str, *, output: int = 0) -> Verdict:
    """A delta of one token for each character."""
    return stream.delta(output, offset, len(text), [ord(character) for character in text], text)


def broken_off(text: str = "hello", *, mode: ResumeMode = ResumeMode.SAME_MODEL) -> ExactlyOnce:
    """A stream lost after `text`, with its continuation begun."""
    stream = begun(mode=mode)
    assert hear(stream, 0, text) is DELIVER
    stream.begin_attempt()
    assert stream.started(FACTS) is DROP
    return stream


def violation(verdict: Verdict | None) -> ViolationKind:
    assert isinstance(verdict, Violation)
    assert verdict.message
    return verdict.kind


# --- one attempt ---


def test_a_whole_stream_passes_as_it_is() -> None:
    stream = begun(wants_progress=True)

    verdicts = [
        stream.progress(),
        hear(stream, 0, "he"),
        hear(stream, 2, "llo"),
        stream.finished(0, STOP, 5),
        stream.completed(),
    ]

    assert verdicts == [DELIVER] * 5
    assert stream.ended() is None
    assert stream.events_delivered == 6
    assert repr(stream) == "<ExactlyOnce completed, attempt 1, output 0: 5 tokens>"


def test_a_missing_token_is_a_gap() -> None:
    stream = begun()
    hear(stream, 0, "he")

    assert violation(hear(stream, 3, "lo")) is ViolationKind.GAP


def test_a_first_attempt_begins_at_the_first_token() -> None:
    assert violation(hear(begun(), 1, "ello")) is ViolationKind.GAP


@pytest.mark.parametrize("offset", [0, 1])
def test_a_token_sent_twice_in_one_attempt_is_a_repeat(offset: int) -> None:
    stream = begun()
    hear(stream, 0, "he")

    assert violation(hear(stream, offset, "he"[offset:])) is ViolationKind.REPEAT


@pytest.mark.parametrize("ids", [[], [1], [1, 2, 3]])
def test_ids_that_do_not_match_their_count_are_a_gap(ids: list[int]) -> None:
    assert violation(begun().delta(0, 0, 2, ids, "he")) is ViolationKind.GAP


def test_an_end_without_completed_is_truncated() -> None:
    stream = begun()
    hear(stream, 0, "hello")
    stream.finished(0, STOP, 5)

    assert violation(stream.ended()) is ViolationKind.TRUNCATED


def test_completed_before_every_output_has_finished_is_truncated() -> None:
    stream = begun(outputs=2)
    stream.finished(0, STOP, 0)

    assert violation(stream.completed()) is ViolationKind.TRUNCATED
    assert not stream.is_completed


def test_tokens_before_started_are_a_gap() -> None:
    stream = ExactlyOnce(mode=ResumeMode.NEVER)
    stream.begin_attempt()

    assert violation(stream.delta(0, 0, 1, [], "h")) is ViolationKind.GAP
    assert violation(stream.finished(0, STOP, 1)) is ViolationKind.GAP
    assert violation(stream.completed()) is ViolationKind.GAP
    assert violation(stream.prompt_logprobs(0, 4)) is ViolationKind.GAP


def test_anything_after_completed_is_a_repeat() -> None:
    stream = begun()
    stream.finished(0, STOP, 0)
    stream.completed()

    assert violation(stream.progress()) is ViolationKind.REPEAT
    assert violation(hear(stream, 0, "h")) is ViolationKind.REPEAT
    assert violation(stream.finished(0, STOP, 0)) is ViolationKind.REPEAT
    assert violation(stream.completed()) is ViolationKind.REPEAT
    assert violation(stream.started(FACTS)) is ViolationKind.REPEAT


@pytest.mark.parametrize("again", ["started", "finished", "delta"])
def test_what_may_come_once_is_a_repeat_the_second_time(again: str) -> None:
    stream = begun()
    stream.finished(0, STOP, 0)

    verdict = {
        "started": lambda: stream.started(FACTS),
        "finished": lambda: stream.finished(0, STOP, 0),
        "delta": lambda: hear(stream, 0, "h"),
    }[again]()

    assert violation(verdict) is ViolationKind.REPEAT


# --- a continuation ---


def test_a_continuation_asks_for_what_is_missing() -> None:
    stream = begun(outputs=3)
    hear(stream, 0, "hi", output=0)
    hear(stream, 0, "a", output=2)
    stream.finished(2, STOP, 1)

    assert stream.continuation() == Continuation(
        prompt_digest=b"p",
        seed=42,
        expected_fingerprint="f1",
        outputs=(HeldOutput(0, (104, 105)), HeldOutput(2, (97,), finished=True)),
    )


def test_under_any_no_model_is_expected() -> None:
    assert begun(mode=ResumeMode.ANY).continuation().expected_fingerprint == ""


def test_nothing_can_be_continued_before_started() -> None:
    with pytest.raises(ValueError, match="nothing has started"):
        ExactlyOnce(mode=ResumeMode.SAME_MODEL).continuation()


def test_a_continuation_that_goes_on_exactly_is_delivered() -> None:
    stream = broken_off("hello")

    assert hear(stream, 5, " world") is DELIVER
    assert stream.partial_outputs() == (PartialOutput(0, "hello world"),)


def test_a_repeat_of_what_is_held_is_dropped_after_comparison() -> None:
    stream = broken_off("hello")

    assert [hear(stream, 2, "l"), hear(stream, 3, "lo"), hear(stream, 5, "!")] == [DROP, DROP, DELIVER]


def test_a_restart_from_the_very_beginning_is_still_exactly_once() -> None:
    stream = broken_off("hello")

    assert [hear(stream, 0, "hell"), hear(stream, 4, "o wor")] == [DROP, Trim(1, " wor")]
    assert stream.partial_outputs()[0].text == "hello wor"


def test_another_token_where_one_is_held_is_a_divergence() -> None:
    stream = broken_off("hello")

    assert violation(hear(stream, 3, "p!")) is ViolationKind.DIVERGED
    assert stream.partial_outputs()[0].text == "hello"


def test_a_continuation_that_begins_too_late_is_a_gap() -> None:
    assert violation(hear(broken_off("hello"), 6, "x")) is ViolationKind.GAP


def test_a_continuation_may_not_repeat_itself() -> None:
    stream = broken_off("hello")
    hear(stream, 2, "llo")

    assert violation(hear(stream, 2, "llo")) is ViolationKind.REPEAT


def test_a_continuation_that_skips_held_tokens_is_a_gap() -> None:
    stream = broken_off("hello")
    hear(stream, 0, "he")

    assert violation(hear(stream, 4, "o")) is ViolationKind.GAP


def test_equal_ids_with_other_text_are_a_divergence() -> None:
    stream = begun()
    stream.delta(0, 0, 2, [1, 2], "ab")
    stream.begin_attempt()
    stream.started(FACTS)

    assert violation(stream.delta(0, 0, 3, [1, 2, 3], "xyz")) is ViolationKind.DIVERGED


def test_other_chunks_than_the_first_time_make_no_difference() -> None:
    """Tokens 0-2 came as one delta; the continuation repeats them with other borders."""
    stream = begun()
    stream.delta(0, 0, 3, [1, 2, 3], "abcdef")
    stream.begin_attempt()
    stream.started(FACTS)

    assert stream.delta(0, 0, 1, [1], "ab") is DROP
    assert stream.delta(0, 1, 3, [2, 3, 4], "cdefgh") == Trim(2, "gh")
    assert stream.partial_outputs()[0].text == "abcdefgh"


def test_a_cut_whose_place_in_the_text_is_unknown_is_refused() -> None:
    stream = begun()
    stream.delta(0, 0, 3, [7, 7, 7], "aaaa")
    stream.begin_attempt()
    stream.started(FACTS)

    assert violation(stream.delta(0, 1, 3, [7, 7, 7], "aaaaa")) is ViolationKind.DIVERGED


def test_a_whole_repeat_from_an_unknown_place_is_dropped() -> None:
    stream = begun()
    stream.delta(0, 0, 3, [7, 7, 7], "aaaa")
    stream.begin_attempt()
    stream.started(FACTS)

    assert stream.delta(0, 1, 2, [7, 7], "aa") is DROP
    assert stream.delta(0, 3, 1, [8], "b") is DELIVER


def test_a_repeat_with_other_text_is_a_divergence() -> None:
    stream = begun()
    stream.delta(0, 0, 3, [1, 2, 3], "abc")
    stream.begin_attempt()
    stream.started(FACTS)

    assert violation(stream.delta(0, 0, 2, [1, 2], "ax")) is ViolationKind.DIVERGED


@pytest.mark.parametrize(
    ("facts", "word"),
    [
        (StartedFacts(model_fingerprint="f2", prompt_digest=b"p", seed=42), "model"),
        (StartedFacts(model_fingerprint="f1", prompt_digest=b"q", seed=42), "prompt"),
        (StartedFacts(model_fingerprint="f1", prompt_digest=b"p", seed=43), "seed"),
    ],
)
@pytest.mark.parametrize("mode", [ResumeMode.SAME_MODEL, ResumeMode.ANY])
def test_another_model_prompt_or_seed_is_a_divergence_unless_any_will_do(
    facts: StartedFacts, word: str, mode: ResumeMode
) -> None:
    stream = begun(mode=mode)
    stream.begin_attempt()

    verdict = stream.started(facts)

    if mode is ResumeMode.ANY:
        assert verdict is DROP
    else:
        assert verdict == Violation(ViolationKind.DIVERGED, f"the continuation has another {word}")


def test_an_output_that_finishes_before_what_is_held_has_diverged() -> None:
    stream = broken_off("hello")
    hear(stream, 0, "he")

    assert violation(stream.finished(0, STOP, 2)) is ViolationKind.DIVERGED


def test_a_lost_finished_is_delivered_by_the_continuation() -> None:
    stream = broken_off("hello")

    assert [stream.finished(0, STOP, 5), stream.completed()] == [DELIVER, DELIVER]


def test_a_finished_that_the_caller_has_is_dropped_if_it_is_equal() -> None:
    stream = begun()
    stream.finished(0, STOP, 0)
    stream.begin_attempt()
    stream.started(FACTS)

    assert stream.finished(0, STOP, 0) is DROP
    assert violation(stream.finished(0, STOP + 1, 0)) is ViolationKind.DIVERGED


def test_tokens_after_an_outputs_end_are_a_divergence() -> None:
    stream = begun()
    hear(stream, 0, "hi")
    stream.finished(0, STOP, 2)
    stream.begin_attempt()
    stream.started(FACTS)

    assert hear(stream, 0, "hi") is DROP
    assert violation(hear(stream, 2, "!")) is ViolationKind.DIVERGED


def test_outputs_are_continued_each_from_its_own_place() -> None:
    stream = begun(outputs=2)
    hear(stream, 0, "abc", output=0)
    hear(stream, 0, "x", output=1)
    stream.begin_attempt()
    stream.started(FACTS)

    assert hear(stream, 1, "yz", output=1) is DELIVER
    assert hear(stream, 3, "d", output=0) is DELIVER
    assert [one.text for one in stream.partial_outputs()] == ["abcd", "xyz"]


def test_prompt_logprobs_are_delivered_once() -> None:
    stream = begun()
    assert stream.prompt_logprobs(0, 4) is DELIVER
    stream.begin_attempt()
    stream.started(FACTS)

    assert [stream.prompt_logprobs(0, 3), stream.prompt_logprobs(3, 3)] == [DROP, Trim(1, "")]
    assert violation(stream.prompt_logprobs(8, 1)) is ViolationKind.GAP


# --- what the caller asked for ---


def test_ids_are_asked_for_and_taken_off_again() -> None:
    stream = begun(wants_token_ids=False)
    hear(stream, 0, "hi")

    assert (stream.needs_token_ids, stream.strips_token_ids) == (True, True)
    assert stream.partial_outputs() == (PartialOutput(0, "hi"),)


def test_ids_that_the_caller_asked_for_stay() -> None:
    stream = begun(wants_token_ids=True)
    hear(stream, 0, "hi")

    assert not stream.strips_token_ids
    assert stream.partial_outputs() == (PartialOutput(0, "hi", (104, 105)),)


def test_without_resuming_no_ids_are_needed_and_the_order_is_still_watched() -> None:
    stream = begun(mode=ResumeMode.NEVER)

    assert not stream.needs_token_ids
    assert stream.delta(0, 0, 2, [], "hi") is DELIVER
    assert violation(stream.delta(0, 3, 1, [], "!")) is ViolationKind.GAP
    assert violation(stream.delta(0, 1, 1, [], "i")) is ViolationKind.REPEAT


def test_progress_that_nobody_asked_for_is_dropped() -> None:
    assert begun(wants_progress=False).progress() is DROP


def test_a_caller_who_resumes_by_itself_goes_on_from_what_it_holds() -> None:
    stream = begun(held=[HeldOutput(0, (104, 105))])

    assert hear(stream, 2, "!") is DELIVER
    assert stream.continuation().outputs == (HeldOutput(0, (104, 105, 33)),)
    assert stream.partial_outputs() == (PartialOutput(0, "!"),)


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        (ViolationKind.GAP, StreamGap),
        (ViolationKind.REPEAT, StreamRepeat),
        (ViolationKind.TRUNCATED, StreamTruncated),
        (ViolationKind.DIVERGED, StreamDiverged),
    ],
)
def test_each_violation_has_its_error(kind: ViolationKind, error: type[StreamBroken]) -> None:
    assert kind.error is error
