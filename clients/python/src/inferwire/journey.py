"""One call's way over endpoints: where its attempts go, and when it gives up. The policies decide; this carries out."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import grpc

from inferwire.attempts import Attempt
from inferwire.channels import Fleet, Link
from inferwire.errors import (
    AllRegionsDown,
    AttemptReport,
    DeadlineExceeded,
    InferwireError,
    LocalReason,
    StreamLost,
    StreamStalled,
    Unavailable,
)
from inferwire.methods import Method
from inferwire.observation import CallWaits
from inferwire.policy.deadline import Deadline
from inferwire.policy.decision import CallProgress, Decision, Limits, Move, Step, decide
from inferwire.policy.failure import Failure, FailureKind
from inferwire.policy.picker import Picked, Refused
from inferwire.policy.visits import Visits
from inferwire.statuses import error_from

_UNARY, _STREAM = CallProgress(is_stream=False), CallProgress(is_stream=True)
_NOTHING: Mapping[str, Any] = MappingProxyType({})


class Journey:
    """Call `first`, then `next` after each failure. Both raise an InferwireError when there is nowhere to go."""

    def __init__(
        self, fleet: Fleet, method: Method, deadline: Deadline, *, may_retry: bool = True, key: bytes | None = None
    ) -> None:
        """Calls with the same `key` prefer the same endpoint."""
        self.deadline = deadline
        self.num_attempts = 0
        self.reports: list[AttemptReport] = []
        """Failed attempts, first to last."""
        self.served_by: Link | None = None
        """The endpoint of the latest attempt."""
        self._fleet = fleet
        self._method = method
        self._key = key
        self._may_retry = may_retry and method.is_repeatable
        # Only a stream of tokens can be resumed; once begun, another is lost with its server.
        self._progress = _STREAM if method.is_token_stream else _UNARY
        self._visits = Visits()

    def remaining(self) -> float | None:
        """Seconds until the deadline."""
        return self.deadline.remaining(self._fleet.clock())

    def taken(self) -> None:
        """An engine works for the call again."""
        self._progress = self._progress.taken()

    async def first(self) -> Attempt:
        """The first attempt."""
        await self._fleet.open(self.remaining())
        return self.first_at_once()

    def first_at_once(self) -> Attempt:
        """The same for a fleet that is open."""
        self._fleet.budget.deposit()
        picked = self._fleet.pick(self._visits, key=self._key)
        if isinstance(picked, Refused):
            raise self._outage(picked, None)
        return self._begin(picked, is_resume=False)

    async def next(
        self,
        attempt: Attempt,
        failure: Failure,
        cause: grpc.aio.AioRpcError | None,
        *,
        error: InferwireError | None = None,
        delivered: Mapping[str, Any] = _NOTHING,
        may_go_on: bool = True,
    ) -> tuple[Attempt, Step]:
        """The attempt after a failure, and whether it starts over or resumes. A final failure raises `error`, or the
        error that it stands for, with what was `delivered` (arguments of an InferwireError)."""
        decision = self.dropped(attempt, failure)
        was_lost = self._progress.lost_at is not None
        refused: Refused | None = None
        if decision.step is not Step.FINAL and self._may_retry and may_go_on:
            await self._fleet.have_credential(self.remaining())
            moved = await self._move(decision, attempt.link, failure, cause)
            if not isinstance(moved, Refused):
                return self._begin(moved, is_resume=decision.step is Step.RESUME), decision.step
            refused = moved
        if error is not None:
            error.attempts = tuple(self.reports)
            raise error
        raise self._final(failure, cause, refused, {"attempts": self.reports, **delivered}, was_lost=was_lost)

    def dropped(self, attempt: Attempt, failure: Failure) -> Decision:
        """Note a failed attempt, with what would follow it; another one may still be under way."""
        fleet = self._fleet
        now = fleet.clock()
        decision = decide(failure, self._progress, self._limits(), now=now, rng=fleet.rng)
        attempt.failed(failure, decision)
        self.reports.append(attempt.report(failure))
        endpoint = attempt.link.endpoint
        if failure.kind is FailureKind.CONNECTION:
            fleet.lost()
        self._visits.failed(
            endpoint.key,
            endpoint.region,
            is_fault=failure.kind in (FailureKind.CONNECTION, FailureKind.STALL),
            leaves_region=decision.leaves_region,
            returns_at=None if decision.back is None else now + decision.back.after_s,
        )
        return decision

    def beside(self, attempt: Attempt) -> Attempt | None:
        """A hedge: another attempt beside one that is slow. None where it may not be, or where nobody is fit for it."""
        fleet = self._fleet
        if not self._may_retry or not self.deadline.leaves_room(fleet.clock()):
            return None
        picked = fleet.pick_beside(attempt.link)
        if picked is None:
            return None
        if not fleet.hedging.withdraw(fleet.clock()):
            picked[1].permit.abandon()
            return None
        hedge = self._begin(picked, is_resume=False, is_hedge=True)
        self.served_by = attempt.link
        return hedge

    def leads(self, attempt: Attempt) -> None:
        """A hedge has overtaken the attempt beside which it was sent."""
        self.served_by = attempt.link

    def _limits(self) -> Limits:
        config = self._fleet.config
        waits = [link.state.first_token.expected_s for link in self._fleet.links if link.state.is_healthy]
        # The quickest known: an attempt is worth sending if any endpoint may answer in time.
        expected_s = min((wait for wait in waits if wait is not None), default=0.0)
        is_known = None not in waits
        return Limits(
            retry=config.retry,
            resume=config.resume,
            deadline=self.deadline,
            expected_first_token_s=expected_s if is_known and self._method.is_token_stream else 0.0,
        )

    def _begin(self, picked: tuple[Link, Picked], *, is_resume: bool, is_hedge: bool = False) -> Attempt:
        link, granted = picked
        self.served_by = link
        number = self.num_attempts
        self.num_attempts += 1
        return Attempt(
            self._fleet,
            link,
            granted.permit,
            self._method,
            number=number,
            is_resume=is_resume,
            is_hedge=is_hedge,
        )

    async def _move(
        self, decision: Decision, link: Link, failure: Failure, cause: grpc.aio.AioRpcError | None
    ) -> tuple[Link, Picked] | Refused:
        began = self._fleet.clock()
        refused = Refused({})
        if decision.elsewhere is not None:
            await self._wait_until(began + decision.elsewhere.after_s, failure, cause)
            fits_within_s = self.remaining() if decision.must_fit_deadline else None
            picked = self._take(
                decision,
                decision.elsewhere,
                self._fleet.pick(self._visits, fits_within_s=fits_within_s, key=self._key),
            )
            if not isinstance(picked, Refused):
                return picked
            refused = picked
        if decision.back is not None:
            await self._wait_until(began + decision.back.after_s, failure, cause)
            while True:
                again = (
                    self._fleet.pick_again(link)
                    if decision.stays
                    else self._fleet.pick(self._visits, may_return=True, key=self._key)
                )
                picked = self._take(decision, decision.back, again)
                returns_at = self._next_chance()
                if not isinstance(picked, Refused) or returns_at is None:
                    return picked
                refused = picked
                await self._wait_until(returns_at, failure, cause)
        return refused

    def _take(
        self, decision: Decision, move: Move, picked: tuple[Link, Picked] | Refused
    ) -> tuple[Link, Picked] | Refused:
        """Pay for a move that is possible."""
        if isinstance(picked, Refused):
            return picked
        now = self._fleet.clock()
        if move.charges_budget and not self._fleet.budget.withdraw(now):
            picked[1].permit.abandon()
            return Refused({})
        self._progress = self._progress.after(decision, move, now)
        return picked

    def _next_chance(self) -> float | None:
        """For a stream that looks for a place to go on: when an endpoint may be tried again; None: never in time."""
        lost_at = self._progress.lost_at
        if lost_at is None:
            return None
        now = self._fleet.clock()
        times = [link.state.breaker.probes_at for link in self._fleet.links]
        chances = [at for at in (*times, self._visits.next_return(now)) if at is not None and at > now]
        at = min(chances, default=None)
        is_in_time = at is not None and at - lost_at <= self._fleet.config.resume.patience_s
        return at if at is not None and is_in_time and self.deadline.leaves_room(at) else None

    async def _wait_until(self, at: float, failure: Failure, cause: grpc.aio.AioRpcError | None) -> None:
        delay_s = at - self._fleet.clock()
        if delay_s > 0:
            said = (cause.details() or "") if cause is not None else ""
            self._fleet.announcer.call_waits(
                CallWaits(
                    method=self._method.path, code=failure.code, reason=str(failure), message=said, delay_s=delay_s
                )
            )
            await self._fleet.sleep(delay_s)

    def _final(
        self,
        failure: Failure,
        cause: grpc.aio.AioRpcError | None,
        refused: Refused | None,
        facts: dict[str, Any],
        *,
        was_lost: bool,
    ) -> InferwireError:
        nowhere = f"; {self._why(refused)}" if refused is not None and refused.regions else ""
        if failure.kind is FailureKind.STALL and not self._method.is_token_stream:
            if nowhere and refused is not None:
                return self._outage(refused, cause)
            return Unavailable("the server gave no sign of life", reason=LocalReason.STALLED, **facts)
        if failure.kind is FailureKind.STALL:
            message = f"nothing came for the stall time, and the stream cannot go on elsewhere{nowhere}"
            return StreamStalled(message, reason=LocalReason.STALLED, started=failure.started, **facts)
        if failure.kind is FailureKind.CONNECTION and (failure.started or was_lost):
            message = f"the server was lost in mid-stream, and the stream cannot go on elsewhere{nowhere}"
            return StreamLost(message, reason=LocalReason.CONNECTION_LOST, started=True, **facts)
        if failure.kind is FailureKind.CONNECTION and nowhere and refused is not None:
            return self._outage(refused, cause)
        if cause is None:
            return DeadlineExceeded("the deadline passed", started=failure.started, **facts)
        return error_from(cause, **facts)

    def _outage(self, refused: Refused, cause: grpc.aio.AioRpcError | None) -> AllRegionsDown:
        detail = f" ({cause.details()})" if cause is not None and cause.details() else ""
        message = f"no allowed region can serve: {self._why(refused)}{detail}"
        return AllRegionsDown(message, regions=self._reasons(refused), attempts=self.reports)

    def _reasons(self, refused: Refused) -> dict[str, str]:
        """Region to reason; where this call has been, what it met there."""
        reasons = {name: str(reason) for name, reason in refused.regions.items()}
        return reasons | {report.region: report.reason for report in self.reports}

    def _why(self, refused: Refused) -> str:
        return "; ".join(f"{name}: {reason}" for name, reason in self._reasons(refused).items())
