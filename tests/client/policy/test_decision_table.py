"""What follows a failed attempt: every row, and every reason with and without Started and a hint."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from random import Random

import pytest
from inferwire.errors import Code, Reason
from inferwire.policy.deadline import Deadline
from inferwire.policy.decision import (
    BreakerOutcome,
    CallProgress,
    Counter,
    Decision,
    Limits,
    Move,
    Rule,
    Step,
    breaker_outcome,
    decide,
    rule_for,
)
from inferwire.policy.failure import Failure, FailureKind
from inferwire.settings import ResumeMode, ResumePolicy, RetryPolicy

NOW = 1_000.0
STREAM = CallProgress(is_stream=True)
UNARY = CallProgress(is_stream=False)
LIMITS = Limits(retry=RetryPolicy(), resume=ResumePolicy(), deadline=Deadline(NOW + 60.0))

CODE_OF = {
    Reason.INVALID_FIELD: Code.INVALID_ARGUMENT,
    Reason.MODEL_NOT_FOUND: Code.NOT_FOUND,
    Reason.GENERATION_NOT_FOUND: Code.NOT_FOUND,
    Reason.CAPABILITY_ABSENT: Code.UNIMPLEMENTED,
    Reason.MODEL_MISMATCH: Code.FAILED_PRECONDITION,
    Reason.OVERLOADED: Code.RESOURCE_EXHAUSTED,
    Reason.QUOTA: Code.RESOURCE_EXHAUSTED,
    Reason.WOULD_EXCEED: Code.DEADLINE_EXCEEDED,
    Reason.EXPIRED: Code.DEADLINE_EXCEEDED,
    Reason.DRAINING: Code.UNAVAILABLE,
    Reason.STARTING: Code.UNAVAILABLE,
    Reason.ENGINE_DOWN: Code.UNAVAILABLE,
    Reason.FENCED: Code.ABORTED,
    Reason.RESUME_LOST: Code.ABORTED,
    Reason.READER_STALLED: Code.ABORTED,
    Reason.CANCELLED_BY_OPERATOR: Code.ABORTED,
    Reason.KEY_CONFLICT: Code.ALREADY_EXISTS,
    Reason.UNAUTHENTICATED: Code.UNAUTHENTICATED,
    Reason.FORBIDDEN: Code.PERMISSION_DENIED,
    Reason.INTERNAL: Code.INTERNAL,
}
HINTED = {
    Reason.OVERLOADED: Rule.OVERLOADED,
    Reason.QUOTA: Rule.QUOTA,
    Reason.DRAINING: Rule.HOP,
    Reason.STARTING: Rule.NOT_READY,
    Reason.ENGINE_DOWN: Rule.NOT_READY,
}
LOST_AFTER_STARTED = {Reason.DRAINING, Reason.ENGINE_DOWN}


def answered(code: Code, reason: str = "", *, hint_s: float | None = None, started: bool = False) -> Failure:
    return Failure(kind=FailureKind.STATUS, code=code, reason=reason, hint_s=hint_s, started=started)


def refused(reason: Reason, hint_s: float | None = 0.5) -> Failure:
    return answered(CODE_OF[reason], reason, hint_s=hint_s)


def connection_lost(*, started: bool = False) -> Failure:
    return Failure(kind=FailureKind.CONNECTION, code=Code.UNAVAILABLE, started=started)


def stalled(*, started: bool) -> Failure:
    return Failure(kind=FailureKind.STALL, code=Code.UNAVAILABLE, started=started)


def decided(failure: Failure, call: CallProgress = STREAM, limits: Limits = LIMITS) -> Decision:
    return decide(failure, call, limits, now=NOW, rng=Random(7))


def resuming(call: CallProgress = STREAM, *, lost_at: float = NOW) -> CallProgress:
    return replace(call, resumes=1, lost_at=lost_at)


def expected_rule(reason: Reason, *, hint: bool, started: bool) -> Rule:
    if started:
        return Rule.LOST if reason in LOST_AFTER_STARTED else Rule.FINAL
    if reason is Reason.WOULD_EXCEED:
        return Rule.WOULD_EXCEED
    return HINTED.get(reason, Rule.FINAL) if hint else Rule.FINAL


def test_every_reason_has_its_code_here() -> None:
    assert set(CODE_OF) == set(Reason)


@pytest.mark.parametrize(("reason", "hint", "started"), list(product(Reason, (True, False), (True, False))))
def test_every_reason_falls_into_its_row(reason: Reason, hint: bool, started: bool) -> None:
    failure = answered(CODE_OF[reason], reason, hint_s=0.5 if hint else None, started=started)

    assert rule_for(failure) is expected_rule(reason, hint=hint, started=started)


@pytest.mark.parametrize(
    ("reason", "hint", "started", "call"),
    list(product(Reason, (True, False), (True, False), (STREAM, UNARY))),
)
def test_every_reason_takes_its_step_in_streams_and_unary_calls(
    reason: Reason, hint: bool, started: bool, call: CallProgress
) -> None:
    failure = answered(CODE_OF[reason], reason, hint_s=0.5 if hint else None, started=started)
    is_final = expected_rule(reason, hint=hint, started=started) is Rule.FINAL
    goes_on = Step.RESUME if started and call.is_stream else Step.RETRY

    decision = decided(failure, call)

    assert decision.step is (Step.FINAL if is_final else goes_on)
    assert (decision.elsewhere is None and decision.back is None) == is_final


@pytest.mark.parametrize("code", [code for code in Code if code not in (Code.INTERNAL, Code.UNKNOWN, Code.OK)])
@pytest.mark.parametrize("started", [True, False])
def test_a_nameless_answer_without_a_hint_is_final(code: Code, started: bool) -> None:
    assert decided(answered(code, started=started)).step is Step.FINAL


@pytest.mark.parametrize("kind", [FailureKind.PROTOCOL, FailureKind.DEADLINE, FailureKind.CANCELLED])
@pytest.mark.parametrize("started", [True, False])
def test_what_ended_on_this_side_is_final(kind: FailureKind, started: bool) -> None:
    assert decided(Failure(kind=kind, code=Code.UNKNOWN, started=started)).step is Step.FINAL


@pytest.mark.parametrize(
    ("code", "rule"),
    [(Code.RESOURCE_EXHAUSTED, Rule.OVERLOADED), (Code.UNAVAILABLE, Rule.NOT_READY), (Code.ABORTED, Rule.FINAL)],
)
def test_a_hint_with_an_unknown_reason_goes_by_its_code(code: Code, rule: Rule) -> None:
    assert rule_for(answered(code, "REASON_OF_A_NEWER_SERVER", hint_s=0.5)) is rule


# --- rows ---


@pytest.mark.parametrize("failure", [connection_lost(), refused(Reason.DRAINING)], ids=["lost", "draining"])
@pytest.mark.parametrize("call", [STREAM, UNARY], ids=["stream", "unary"])
def test_a_hop_goes_elsewhere_at_once_and_free(failure: Failure, call: CallProgress) -> None:
    decision = decided(failure, call)

    assert decision.elsewhere == Move(after_s=0.0, charges_budget=False, counter=Counter.HOPS)
    assert decision.back is not None
    assert (decision.back.charges_budget, decision.back.counter) == (True, Counter.ATTEMPTS)
    assert not decision.feeds_throttle


def test_the_fourth_hop_costs_budget_and_waits_like_a_retry() -> None:
    decision = decided(connection_lost(), replace(STREAM, hops=3))

    assert decision.elsewhere is not None
    assert (decision.elsewhere.charges_budget, decision.elsewhere.counter) == (True, Counter.ATTEMPTS)
    assert 0.0 < decision.elsewhere.after_s <= 0.05


def test_hops_end_when_hops_and_attempts_are_used_up() -> None:
    assert decided(connection_lost(), replace(STREAM, hops=3, attempts=4)).step is Step.FINAL


@pytest.mark.parametrize("reason", [Reason.STARTING, Reason.ENGINE_DOWN])
def test_not_ready_goes_elsewhere_with_jitter_and_back_after_the_hint(reason: Reason) -> None:
    decision = decided(refused(reason, hint_s=0.5))

    assert decision.elsewhere is not None
    assert decision.back is not None
    assert 0.0 < decision.elsewhere.after_s <= 0.05
    assert 0.5 <= decision.back.after_s <= 0.6
    assert decision.elsewhere.charges_budget
    assert decision.back.charges_budget
    assert decision.feeds_throttle


def test_overloaded_goes_elsewhere_at_once_or_back_after_the_hint() -> None:
    decision = decided(refused(Reason.OVERLOADED, hint_s=0.5))

    assert decision.elsewhere == Move(after_s=0.0, charges_budget=True, counter=Counter.ATTEMPTS)
    assert decision.back is not None
    assert 0.5 <= decision.back.after_s <= 0.6
    assert decision.feeds_throttle
    assert decision.pushback_s == 0.5


def test_quota_waits_for_the_hint_at_the_same_endpoint_and_feeds_nothing() -> None:
    decision = decided(refused(Reason.QUOTA, hint_s=2.0))

    assert decision.stays
    assert decision.elsewhere is None
    assert decision.back is not None
    assert 2.0 <= decision.back.after_s <= 2.4
    assert not decision.back.charges_budget
    assert (decision.feeds_throttle, decision.pushback_s, decision.breaker) == (False, None, BreakerOutcome.NEUTRAL)


def test_would_exceed_tries_one_other_endpoint_that_is_fast_enough() -> None:
    first = decided(refused(Reason.WOULD_EXCEED, hint_s=None))
    assert first.elsewhere is not None
    second = decided(refused(Reason.WOULD_EXCEED, hint_s=None), STREAM.after(first, first.elsewhere, NOW))

    assert (first.step, first.must_fit_deadline, first.back) == (Step.RETRY, True, None)
    assert second.step is Step.FINAL


@pytest.mark.parametrize("code", [Code.INTERNAL, Code.UNKNOWN])
def test_an_unexplained_fault_is_tried_once_elsewhere(code: Code) -> None:
    first = decided(answered(code))
    assert first.elsewhere is not None
    second = decided(answered(code), STREAM.after(first, first.elsewhere, NOW))

    assert first.elsewhere == Move(after_s=0.0, charges_budget=True, counter=Counter.ATTEMPTS)
    assert (first.step, first.back) == (Step.RETRY, None)
    assert second.step is Step.FINAL


def test_an_unexplained_fault_in_mid_stream_is_resumed_once() -> None:
    first = decided(answered(Code.INTERNAL, started=True))
    assert first.elsewhere is not None
    taken = STREAM.after(first, first.elsewhere, NOW).taken()

    assert (first.step, first.elsewhere.counter) == (Step.RESUME, Counter.RESUMES)
    assert decided(answered(Code.INTERNAL, started=True), taken).step is Step.FINAL


def test_the_services_own_internal_error_is_final() -> None:
    assert decided(answered(Code.INTERNAL, Reason.INTERNAL)).step is Step.FINAL


@pytest.mark.parametrize(
    "failure",
    [
        connection_lost(started=True),
        stalled(started=True),
        answered(Code.UNAVAILABLE, Reason.ENGINE_DOWN, started=True),
        answered(Code.UNAVAILABLE, Reason.DRAINING, started=True),
    ],
    ids=["lost", "stalled", "engine down", "draining"],
)
class TestAStreamLostAfterStarted:
    def test_is_resumed_elsewhere_at_once_and_free(self, failure: Failure) -> None:
        decision = decided(failure)

        assert decision.step is Step.RESUME
        assert decision.elsewhere == Move(after_s=0.0, charges_budget=False, counter=Counter.RESUMES)
        assert decision.back is not None
        assert not decision.back.charges_budget

    def test_is_resumed_three_times_at_most(self, failure: Failure) -> None:
        assert decided(failure, replace(STREAM, resumes=2)).step is Step.RESUME
        assert decided(failure, replace(STREAM, resumes=3)).step is Step.FINAL

    def test_is_final_where_the_policy_is_never(self, failure: Failure) -> None:
        never = replace(LIMITS, resume=ResumePolicy(mode=ResumeMode.NEVER))

        assert decided(failure, limits=never).step is Step.FINAL

    def test_goes_on_under_the_policy_any(self, failure: Failure) -> None:
        anywhere = replace(LIMITS, resume=ResumePolicy(mode=ResumeMode.ANY))

        assert decided(failure, limits=anywhere).step is Step.RESUME


def test_a_stall_before_started_is_tried_in_another_region_even_where_resuming_is_off() -> None:
    never = replace(LIMITS, resume=ResumePolicy(mode=ResumeMode.NEVER))

    decision = decided(stalled(started=False), limits=never)

    assert (decision.step, decision.leaves_region) == (Step.RETRY, True)
    assert decision.elsewhere == Move(after_s=0.0, charges_budget=False, counter=Counter.RESUMES)


def test_a_unary_call_lost_after_started_is_sent_again() -> None:
    decision = decided(answered(Code.UNAVAILABLE, Reason.ENGINE_DOWN, started=True), UNARY)

    assert decision.step is Step.RETRY
    assert decision.elsewhere == Move(after_s=0.0, charges_budget=False, counter=Counter.RESUMES)


# --- while a stream is being resumed ---


@pytest.mark.parametrize(
    "failure",
    [connection_lost(), refused(Reason.DRAINING), refused(Reason.ENGINE_DOWN), refused(Reason.OVERLOADED)],
    ids=["lost", "draining", "engine down", "overloaded"],
)
def test_refusals_of_a_resume_cost_no_budget_and_no_attempts(failure: Failure) -> None:
    decision = decided(failure, replace(resuming(), attempts=4, hops=3))

    assert decision.step is Step.RESUME
    assert decision.elsewhere is not None
    assert decision.back is not None
    assert [decision.elsewhere.counter, decision.back.counter] == [Counter.PATIENCE, Counter.PATIENCE]
    assert [decision.elsewhere.charges_budget, decision.back.charges_budget] == [False, False]


def test_a_resume_gives_up_when_its_patience_is_over() -> None:
    assert decided(connection_lost(), resuming(lost_at=NOW - 9.0)).step is Step.RESUME
    assert decided(connection_lost(), resuming(lost_at=NOW - 10.1)).step is Step.FINAL


def test_the_polls_of_a_resume_grow_up_to_the_cap() -> None:
    late = replace(resuming(), moves_since_loss=20)

    delays = [decide(connection_lost(), late, LIMITS, now=NOW, rng=Random(seed)).back for seed in range(200)]

    assert 1.9 < max(move.after_s for move in delays if move is not None) <= 2.0


def test_another_model_sends_a_resume_on_but_ends_a_first_attempt() -> None:
    mismatch = refused(Reason.MODEL_MISMATCH, hint_s=None)

    assert decided(mismatch, resuming()).step is Step.RESUME
    assert decided(mismatch, resuming()).back is None
    assert decided(mismatch).step is Step.FINAL


@pytest.mark.parametrize("reason", [Reason.RESUME_LOST, Reason.FENCED, Reason.INVALID_FIELD])
def test_a_refusal_that_cannot_be_helped_ends_a_resume(reason: Reason) -> None:
    assert decided(refused(reason, hint_s=None), resuming()).step is Step.FINAL


# --- limits ---


@pytest.mark.parametrize("reason", [Reason.STARTING, Reason.ENGINE_DOWN, Reason.OVERLOADED, Reason.QUOTA])
def test_attempts_end_at_their_limit(reason: Reason) -> None:
    assert decided(refused(reason), replace(STREAM, attempts=3)).step is Step.RETRY
    assert decided(refused(reason), replace(STREAM, attempts=4)).step is Step.FINAL


def test_a_hint_past_the_deadline_leaves_only_other_endpoints() -> None:
    decision = decided(refused(Reason.OVERLOADED, hint_s=90.0))

    assert decision.elsewhere is not None
    assert decision.back is None


def test_a_quota_hint_past_the_deadline_is_final() -> None:
    assert decided(refused(Reason.QUOTA, hint_s=90.0)).step is Step.FINAL


def test_nothing_is_sent_that_could_not_give_a_token_in_time() -> None:
    tight = replace(LIMITS, deadline=Deadline(NOW + 0.3), expected_first_token_s=0.4)

    assert decided(connection_lost(started=True), limits=tight).step is Step.FINAL


def test_delays_differ_between_callers_and_stay_within_the_backoff() -> None:
    moves = [
        decide(refused(Reason.STARTING), STREAM, LIMITS, now=NOW, rng=Random(seed)).elsewhere for seed in range(50)
    ]
    delays = [move.after_s for move in moves if move is not None]

    assert len(set(delays)) == 50
    assert max(delays) <= RetryPolicy().base_delay_s


@pytest.mark.parametrize("reason", list(HINTED))
@pytest.mark.parametrize("seed", range(20))
def test_going_back_never_comes_before_going_elsewhere(reason: Reason, seed: int) -> None:
    decision = decide(refused(reason, hint_s=0.01), replace(STREAM, attempts=3), LIMITS, now=NOW, rng=Random(seed))

    assert decision.back is not None
    assert decision.elsewhere is None or decision.back.after_s >= decision.elsewhere.after_s


# --- the breaker ---


@pytest.mark.parametrize(
    "failure",
    [
        connection_lost(),
        connection_lost(started=True),
        stalled(started=False),
        stalled(started=True),
        refused(Reason.ENGINE_DOWN),
        answered(Code.UNAVAILABLE, Reason.ENGINE_DOWN, started=True),
        answered(Code.INTERNAL, Reason.INTERNAL),
        answered(Code.INTERNAL),
        answered(Code.UNKNOWN),
        Failure(kind=FailureKind.PROTOCOL, code=Code.DATA_LOSS),
    ],
    ids=str,
)
def test_faults_of_the_endpoint_count_for_its_breaker(failure: Failure) -> None:
    assert breaker_outcome(failure) is BreakerOutcome.FAILURE


NEUTRAL_REASONS = [reason for reason in Reason if reason not in (Reason.ENGINE_DOWN, Reason.INTERNAL)]


@pytest.mark.parametrize("reason", NEUTRAL_REASONS)
@pytest.mark.parametrize("started", [True, False])
def test_refusals_and_the_callers_errors_do_not(reason: Reason, started: bool) -> None:
    assert breaker_outcome(answered(CODE_OF[reason], reason, started=started)) is BreakerOutcome.NEUTRAL


@pytest.mark.parametrize("kind", [FailureKind.CANCELLED, FailureKind.DEADLINE])
def test_what_the_caller_ended_does_not(kind: FailureKind) -> None:
    assert breaker_outcome(Failure(kind=kind, code=Code.CANCELLED)) is BreakerOutcome.NEUTRAL


def test_a_message_over_the_size_limit_is_final_and_neutral() -> None:
    """gRPC's own RESOURCE_EXHAUSTED: no reason, no hint."""
    decision = decided(answered(Code.RESOURCE_EXHAUSTED))

    assert decision.step is Step.FINAL
    assert decision.breaker is BreakerOutcome.NEUTRAL
    assert not decision.feeds_throttle


# --- a call's counters ---


def test_a_loss_starts_the_hops_anew() -> None:
    decision = decided(connection_lost(started=True), replace(STREAM, hops=3))
    assert decision.elsewhere is not None

    call = replace(STREAM, hops=3).after(decision, decision.elsewhere, NOW)

    assert (call.hops, call.resumes, call.lost_at) == (0, 1, NOW)


def test_a_resume_that_was_taken_ends_the_search() -> None:
    assert resuming().taken() == replace(STREAM, resumes=1)


def test_a_stall_before_started_is_no_resume() -> None:
    decision = decided(stalled(started=False))
    assert decision.elsewhere is not None

    assert STREAM.after(decision, decision.elsewhere, NOW).lost_at is None
