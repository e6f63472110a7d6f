"""What to do after an attempt failed: one table on (code, reason, hint, started), then the limits of the call."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from random import Random

from inferwire.errors import Code, Reason
from inferwire.policy.backoff import after_hint, full_jitter
from inferwire.policy.deadline import Deadline
from inferwire.policy.failure import Failure, FailureKind
from inferwire.settings import ResumeMode, ResumePolicy, RetryPolicy


class Rule(enum.Enum):
    """A row of the table."""

    HOP = "nobody answered, or the server drains: another endpoint at once, then another region"
    NOT_READY = "starting, or its engine is down: elsewhere after full jitter"
    OVERLOADED = "no room: another endpoint at once, or after the hint"
    QUOTA = "the tenant's own limit: the same endpoint after the hint"
    WOULD_EXCEED = "too slow for the deadline: one other endpoint that is fast enough"
    LOST = "work that had begun was lost: resume elsewhere"
    OTHER_MODEL = "no place to resume, since its model differs: another endpoint"
    UNEXPLAINED = "a fault that nobody explains: once, another endpoint"
    FINAL = "the caller gets it as it is"


class Step(enum.Enum):
    """What to do next."""

    FINAL = "final"
    RETRY = "retry"
    """Send the request again, with the next attempt number."""
    RESUME = "resume"
    """Ask for the rest of the stream, with the next attempt number."""


class BreakerOutcome(enum.Enum):
    """What an attempt says about its endpoint."""

    FAILURE = "failure"
    NEUTRAL = "neutral"


class Counter(enum.Enum):
    """Which limit of the call a move counts against."""

    ATTEMPTS = "attempts"
    HOPS = "hops"
    RESUMES = "resumes"
    PATIENCE = "patience"
    """A stream that is being resumed looks on for `ResumePolicy.patience_s`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """One way to go on."""

    after_s: float
    charges_budget: bool
    counter: Counter


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The answer to one failure. Unless `step` is FINAL, `elsewhere` or `back` is there, or both."""

    rule: Rule
    step: Step
    elsewhere: Move | None = None
    """To an endpoint that this call has not tried."""
    back: Move | None = None
    """To one that it has tried, when no other is left; never sooner than `elsewhere`."""
    breaker: BreakerOutcome = BreakerOutcome.NEUTRAL
    feeds_throttle: bool = False
    pushback_s: float | None = None
    """For how long other calls should prefer other endpoints."""
    stays: bool = False
    """Going back means to the very endpoint that answered."""
    leaves_region: bool = False
    """Prefer other regions at once."""
    must_fit_deadline: bool = False
    """Only to an endpoint whose expected first token comes before the deadline."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallProgress:
    """What one call has used up."""

    is_stream: bool
    attempts: int = 1
    """Counted against `RetryPolicy.max_attempts`, the first included."""
    hops: int = 0
    """Free ones since the last loss of begun work."""
    resumes: int = 0
    lost_at: float | None = None
    """Monotonic seconds at which the stream that is now being resumed was lost."""
    moves_since_loss: int = 0
    used_once: frozenset[Rule] = frozenset()

    def after(self, decision: Decision, move: Move, now: float) -> CallProgress:
        """The call after it has taken one of the decision's moves."""
        progress = replace(
            self,
            attempts=self.attempts + (move.counter is Counter.ATTEMPTS),
            hops=self.hops + (move.counter is Counter.HOPS),
            resumes=self.resumes + (move.counter is Counter.RESUMES),
            moves_since_loss=self.moves_since_loss + 1,
            used_once=self.used_once | {decision.rule} if decision.rule in _ONCE else self.used_once,
        )
        if move.counter is not Counter.RESUMES:
            return progress
        return replace(progress, lost_at=now if decision.step is Step.RESUME else None, hops=0, moves_since_loss=0)

    def taken(self) -> CallProgress:
        """The call after Started: an engine works for it."""
        return self if self.lost_at is None else replace(self, lost_at=None, moves_since_loss=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What bounds a call."""

    retry: RetryPolicy
    resume: ResumePolicy
    deadline: Deadline
    expected_first_token_s: float = 0.0
    """Best guess for the next attempt; 0 when nothing is known."""


_ONCE = frozenset({Rule.WOULD_EXCEED, Rule.UNEXPLAINED})
_ENDED_HERE = frozenset({FailureKind.PROTOCOL, FailureKind.DEADLINE, FailureKind.CANCELLED})
_FAULTS = frozenset({FailureKind.CONNECTION, FailureKind.STALL, FailureKind.PROTOCOL})
_UNEXPLAINED_CODES = frozenset({Code.INTERNAL, Code.UNKNOWN})


def rule_for(failure: Failure, *, is_resuming: bool = False) -> Rule:
    """The row of the table that a failure falls into."""
    if failure.kind in _ENDED_HERE:
        return Rule.FINAL
    if failure.kind is FailureKind.STALL:
        return Rule.LOST
    if failure.kind is FailureKind.CONNECTION:
        return Rule.LOST if failure.started else Rule.HOP
    return _rule_for_status(failure, is_resuming=is_resuming)


def _rule_for_status(failure: Failure, *, is_resuming: bool) -> Rule:
    if failure.code in _UNEXPLAINED_CODES and not failure.reason:
        return Rule.UNEXPLAINED
    if failure.started:
        return Rule.LOST if failure.reason in (Reason.ENGINE_DOWN, Reason.DRAINING) else Rule.FINAL
    if failure.reason == Reason.WOULD_EXCEED:
        return Rule.WOULD_EXCEED
    if failure.reason == Reason.MODEL_MISMATCH and is_resuming:
        return Rule.OTHER_MODEL
    return Rule.FINAL if failure.hint_s is None else _rule_for_hint(failure)


def _rule_for_hint(failure: Failure) -> Rule:
    if failure.reason == Reason.QUOTA:
        return Rule.QUOTA
    if failure.reason == Reason.DRAINING:
        return Rule.HOP
    return {Code.RESOURCE_EXHAUSTED: Rule.OVERLOADED, Code.UNAVAILABLE: Rule.NOT_READY}.get(failure.code, Rule.FINAL)


def breaker_outcome(failure: Failure) -> BreakerOutcome:
    """Lost connections, stalls, dead engines and faults count; refusals, drains and the caller's doing do not."""
    if failure.kind in _FAULTS:
        return BreakerOutcome.FAILURE
    is_fault = failure.kind is FailureKind.STATUS and (
        failure.reason in (Reason.ENGINE_DOWN, Reason.INTERNAL)
        or (failure.code in _UNEXPLAINED_CODES and not failure.reason)
    )
    return BreakerOutcome.FAILURE if is_fault else BreakerOutcome.NEUTRAL


def decide(failure: Failure, call: CallProgress, limits: Limits, *, now: float, rng: Random) -> Decision:
    """What follows a failed attempt. `now` in monotonic seconds; `rng` draws the delays."""
    is_resuming = call.lost_at is not None
    rule = rule_for(failure, is_resuming=is_resuming)
    turn = _Turn(failure, call, limits, now, rng)
    elsewhere, back = _MOVES[rule](turn)
    elsewhere, back = turn.allowed(elsewhere), turn.allowed(back)
    step = turn.step(rule)
    is_final = step is Step.FINAL or (elsewhere is None and back is None) or (rule in _ONCE and rule in call.used_once)
    return Decision(
        rule=rule,
        step=Step.FINAL if is_final else step,
        elsewhere=None if is_final else elsewhere,
        back=None if is_final else back,
        breaker=breaker_outcome(failure),
        feeds_throttle=rule in (Rule.OVERLOADED, Rule.NOT_READY),
        pushback_s=failure.hint_s if rule in (Rule.OVERLOADED, Rule.NOT_READY, Rule.HOP) else None,
        stays=rule is Rule.QUOTA,
        leaves_region=failure.kind is FailureKind.STALL,
        must_fit_deadline=rule is Rule.WOULD_EXCEED,
    )


_Ways = tuple[Move | None, Move | None]


class _Turn:
    """One failure with everything that its moves depend on."""

    def __init__(self, failure: Failure, call: CallProgress, limits: Limits, now: float, rng: Random) -> None:
        self.failure = failure
        self.call = call
        self.limits = limits
        self.now = now
        self.rng = rng

    def step(self, rule: Rule) -> Step:
        if rule is Rule.FINAL:
            return Step.FINAL
        if self.call.is_stream and (self.failure.started or self.call.lost_at is not None):
            return Step.FINAL if self.limits.resume.mode is ResumeMode.NEVER else Step.RESUME
        return Step.RETRY

    def allowed(self, move: Move | None) -> Move | None:
        if move is None:
            return None
        retry, resume, call = self.limits.retry, self.limits.resume, self.call
        within = {
            Counter.ATTEMPTS: call.attempts < retry.max_attempts,
            Counter.HOPS: call.hops < retry.max_free_hops,
            Counter.RESUMES: call.resumes < resume.max_resumes,
            Counter.PATIENCE: call.lost_at is None or self.now + move.after_s - call.lost_at <= resume.patience_s,
        }[move.counter]
        in_time = self.limits.deadline.leaves_room(
            self.now, delay_s=move.after_s, first_token_s=self.limits.expected_first_token_s
        )
        return move if within and in_time else None

    def attempt(self, after_s: float) -> Move:
        if self.call.lost_at is not None:
            return Move(after_s=after_s, charges_budget=False, counter=Counter.PATIENCE)
        return Move(after_s=after_s, charges_budget=True, counter=Counter.ATTEMPTS)

    def jitter(self) -> float:
        retry = self.call.attempts - 1 if self.call.lost_at is None else self.call.moves_since_loss
        return full_jitter(retry, self.limits.retry.base_delay_s, self.limits.retry.max_delay_s, self.rng)

    def hint(self) -> float:
        return after_hint(self.failure.hint_s or 0.0, self.rng)

    def hop(self) -> _Ways:
        is_free = self.call.lost_at is None and self.call.hops < self.limits.retry.max_free_hops
        back = self.attempt(max(self.jitter(), self.hint()))
        if is_free:
            return Move(after_s=0.0, charges_budget=False, counter=Counter.HOPS), back
        return self.attempt(0.0 if self.call.lost_at is not None else self.jitter()), back

    def not_ready(self) -> _Ways:
        delay_s = self.jitter()
        return self.attempt(delay_s), self.attempt(max(delay_s, self.hint()))

    def overloaded(self) -> _Ways:
        return self.attempt(0.0), self.attempt(self.hint())

    def quota(self) -> _Ways:
        return None, replace(self.attempt(self.hint()), charges_budget=False)

    def would_exceed(self) -> _Ways:
        return self.attempt(0.0), None

    def lost(self) -> _Ways:
        again = Move(after_s=0.0, charges_budget=False, counter=Counter.RESUMES)
        return again, replace(again, after_s=self.jitter())

    def other_model(self) -> _Ways:
        return self.attempt(0.0), None

    def unexplained(self) -> _Ways:
        if self.failure.started:
            return Move(after_s=0.0, charges_budget=False, counter=Counter.RESUMES), None
        return self.attempt(0.0), None

    def final(self) -> _Ways:
        return None, None


_MOVES: Mapping[Rule, Callable[[_Turn], _Ways]] = {
    Rule.HOP: _Turn.hop,
    Rule.NOT_READY: _Turn.not_ready,
    Rule.OVERLOADED: _Turn.overloaded,
    Rule.QUOTA: _Turn.quota,
    Rule.WOULD_EXCEED: _Turn.would_exceed,
    Rule.LOST: _Turn.lost,
    Rule.OTHER_MODEL: _Turn.other_model,
    Rule.UNEXPLAINED: _Turn.unexplained,
    Rule.FINAL: _Turn.final,
}
