"""One attempt of a call: what it is sent, how it failed, and what that tells its endpoint."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import grpc
from google.rpc import error_details_pb2, status_pb2

from inferwire.channels import Fleet, Link
from inferwire.errors import AttemptReport, Code
from inferwire.methods import Method
from inferwire.observation import AttemptEnded
from inferwire.policy.breaker import Permit
from inferwire.policy.decision import BreakerOutcome, Decision
from inferwire.policy.failure import Failure, FailureKind, read_pushback, status_failure

ATTEMPT_KEY = "x-inferwire-attempt"
LAYER_KEY = "x-inferwire-retries"
"""Says that a client retries already, so that a server that calls on leaves it to it."""
_DETAILS = "grpc-status-details-bin"
_PUSHBACK = "grpc-retry-pushback-ms"

Metadata = Sequence[tuple[str, str | bytes]]


class Attempt:
    """A permit in use, with the endpoint's counters kept right whatever happens. Only its first end counts."""

    def __init__(
        self,
        fleet: Fleet,
        link: Link,
        permit: Permit,
        method: Method,
        *,
        number: int,
        is_resume: bool,
        is_hedge: bool = False,
    ) -> None:
        self.link = link
        self.number = number
        """Of the call's attempts, from 0."""
        self._fleet = fleet
        self._permit = permit
        self._method = method
        self._is_resume = is_resume
        self._is_hedge = is_hedge
        self._began = fleet.clock()
        self.first_token_s: float | None = None
        """Time to first token; None before it."""
        self.is_answered = False
        self._has_ended = False
        link.state.begin()

    def answered(self) -> None:
        """The server took the request: a probe has succeeded, and the throttle hears of it."""
        if not self.is_answered:
            self.is_answered = True
            now = self._fleet.clock()
            self.link.state.throttle.accepted(now)
            self._permit.alive(now)

    def first_token(self) -> None:
        """Note the time to first token."""
        now = self._fleet.clock()
        self.first_token_s = now - self._began
        self.link.state.first_token.observe(self.first_token_s, now)

    @property
    def elapsed_s(self) -> float:
        """Time since it was sent."""
        return self._fleet.clock() - self._began

    def succeeded(self) -> None:
        """It ended well."""
        self.answered()
        self._permit.success(self._fleet.clock())
        self._end(Code.OK, "")

    def failed(self, failure: Failure, decision: Decision) -> None:
        """It ended otherwise: tell breaker and throttle what the decision says."""
        now = self._fleet.clock()
        if decision.breaker is BreakerOutcome.FAILURE and self.link.state.is_to_blame(self._began, now):
            self._permit.failure(now)
        else:
            self._permit.abandon()
        throttle = self.link.state.throttle
        if decision.feeds_throttle:
            throttle.refused(now)
        elif failure.kind is FailureKind.STATUS and not self.is_answered:
            throttle.accepted(now)
        if decision.pushback_s is not None:
            self.link.state.push_back(decision.pushback_s, now)
        self._end(failure.code, str(failure))

    def abandoned(self) -> None:
        """The caller left: it says nothing about the endpoint."""
        self._permit.abandon()
        self._end(Code.CANCELLED, Code.CANCELLED)

    def _end(self, code: Code, reason: str) -> None:
        if self._has_ended:
            return
        self._has_ended = True
        self.link.work_ended()
        if not self._fleet.announcer.wants(code):
            return
        endpoint = self.link.endpoint
        self._fleet.announcer.attempt_ended(
            AttemptEnded(
                method=self._method.path,
                region=endpoint.region,
                endpoint=endpoint.target,
                number=self.number,
                is_resume=self._is_resume,
                is_hedge=self._is_hedge,
                code=code,
                reason=reason,
                duration_s=self._fleet.clock() - self._began,
                first_token_s=self.first_token_s,
            )
        )

    def report(self, failure: Failure) -> AttemptReport:
        """For the error that the caller may get."""
        endpoint = self.link.endpoint
        return AttemptReport(endpoint.region, endpoint.target, failure.code, str(failure))


def failure_of(error: grpc.aio.AioRpcError, *, has_started: bool, is_past_deadline: bool) -> Failure:
    """What an attempt's status means. `has_started`: this attempt had shown Started."""
    code = Code(error.code().name)
    trailers = dict(error.trailing_metadata() or ())
    info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
    has_retry_info = _unpack(trailers.get(_DETAILS), info, retry)
    if code is Code.DEADLINE_EXCEEDED and not info.reason and is_past_deadline:
        return Failure(kind=FailureKind.DEADLINE, code=code, started=has_started)
    retry_s = retry.retry_delay.ToTimedelta().total_seconds() if has_retry_info else None
    pushback = trailers.get(_PUSHBACK)
    return status_failure(
        code,
        reason=info.reason,
        pushback=read_pushback(pushback if isinstance(pushback, str) else None, retry_s),
        started=has_started or info.metadata.get("started") == "true",
        details=error.details() or "",
    )


def _unpack(encoded: Any, info: error_details_pb2.ErrorInfo, retry: error_details_pb2.RetryInfo) -> bool:
    has_retry_info = False
    try:
        packed = status_pb2.Status.FromString(encoded).details if isinstance(encoded, bytes) else ()
    except ValueError:
        packed = ()
    for each in packed:
        if not each.Unpack(info) and each.Unpack(retry):
            has_retry_info = True
    return has_retry_info


def attempt_metadata(metadata: Metadata, number: int) -> list[tuple[str, str | bytes]]:
    """The caller's metadata with the number of the attempt, from 0."""
    return [*metadata, (ATTEMPT_KEY, str(number)), (LAYER_KEY, "client")]
