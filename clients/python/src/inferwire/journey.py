"""One call's way over endpoints: where its attempts go, and when it gives up. The policies decide; this carries out."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
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
    PartialOutput,
    StreamLost,
    StreamStalled,
)
from inferwire.policy.deadline import Deadline
from inferwire.policy.decision import CallProgress, Decision, Limits, Move, Step, decide
from inferwire.policy.failure import Failure, FailureKind
from inferwire.policy.picker import Picked, Refused
from inferwire.policy.visits import Visits
from inferwire.statuses import error_from


class Journey:
    """Call `first`, then `next` after each failure. Both raise an InferwireError when there is nowhere to go."""

    def __init__(self, fleet: Fleet, deadline: Deadline, *, is_stream: bool, may_retry: bool = True) -> None:
        self.deadline = deadline
        self.reports: list[AttemptReport] = []
        """Failed attempts, first to last."""
        self.served_by: Link | None = None
        """The endpoint of the latest attempt."""
        self._fleet = fleet
        self._may_retry = may_retry
        self._progress = CallProgress(is_stream=is_stream)
        self._visits = Visits()
        self._limits = Limits(retry=fleet.config.retry, resume=fleet.config.resume, deadline=deadline)

    def remaining(self) -> float | None:
        """Seconds until the deadline."""
        return self.deadline.remaining(self._fleet.clock())

    def taken(self) -> None:
        """An engine works for the call again."""
        self._progress = self._progress.taken()

    async def first(self) -> Attempt:
        """The first attempt."""
        await self._fleet.open()
        self._fleet.budget.deposit()
        picked = self._fleet.pick(self._visits)
        if isinstance(picked, Refused):
            raise self._outage(picked, None)
        return self._begin(picked)

    async def next(
        self,
        attempt: Attempt,
        failure: Failure,
        cause: grpc.aio.AioRpcError | None,
        *,
        error: InferwireError | None = None,
        partial: Sequence[PartialOutput] = (),
    ) -> tuple[Attempt, Step]:
        """The attempt after a failure, and whether it starts over or resumes. A final failure raises `error`."""
        fleet = self._fleet
        now = fleet.clock()
        decision = decide(failure, self._progress, self._limits, now=now, rng=fleet.rng)
        attempt.failed(failure, decision)
        self.reports.append(attempt.report(failure))
        endpoint = attempt.link.endpoint
        self._visits.failed(
            endpoint.key,
            endpoint.region,
            is_fault=failure.kind in (FailureKind.CONNECTION, FailureKind.STALL),
            leaves_region=decision.leaves_region,
            returns_at=None if decision.back is None else now + decision.back.after_s,
        )
        refused: Refused | None = None
        if decision.step is not Step.FINAL and self._may_retry:
            moved = await self._move(decision, attempt.link)
            if not isinstance(moved, Refused):
                return self._begin(moved), decision.step
            refused = moved
        raise error or self._final(failure, cause, refused, partial)

    def _begin(self, picked: tuple[Link, Picked]) -> Attempt:
        link, granted = picked
        self.served_by = link
        return Attempt(self._fleet, link, granted.permit)

    async def _move(self, decision: Decision, link: Link) -> tuple[Link, Picked] | Refused:
        began = self._fleet.clock()
        refused = Refused({})
        if decision.elsewhere is not None:
            await self._wait_until(began + decision.elsewhere.after_s)
            fits_within_s = self.remaining() if decision.must_fit_deadline else None
            picked = self._take(
                decision, decision.elsewhere, self._fleet.pick(self._visits, fits_within_s=fits_within_s)
            )
            if not isinstance(picked, Refused):
                return picked
            refused = picked
        if decision.back is not None:
            await self._wait_until(began + decision.back.after_s)
            while True:
                again = (
                    self._fleet.pick_again(link) if decision.stays else self._fleet.pick(self._visits, may_return=True)
                )
                picked = self._take(decision, decision.back, again)
                returns_at = self._next_chance()
                if not isinstance(picked, Refused) or returns_at is None:
                    return picked
                refused = picked
                await self._wait_until(returns_at)
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

    async def _wait_until(self, at: float) -> None:
        delay_s = at - self._fleet.clock()
        if delay_s > 0:
            await asyncio.sleep(delay_s)

    def _final(
        self,
        failure: Failure,
        cause: grpc.aio.AioRpcError | None,
        refused: Refused | None,
        partial: Sequence[PartialOutput],
    ) -> InferwireError:
        facts: dict[str, Any] = {"attempts": self.reports, "partial_outputs": partial}
        if failure.kind is FailureKind.STALL:
            return StreamStalled(
                "nothing came for the stall time, and the stream cannot go on elsewhere",
                reason=LocalReason.STALLED,
                started=failure.started,
                **facts,
            )
        if failure.kind is FailureKind.CONNECTION and failure.started:
            return StreamLost(
                "the server was lost in mid-stream, and the stream cannot go on elsewhere",
                reason=LocalReason.CONNECTION_LOST,
                started=True,
                **facts,
            )
        if failure.kind is FailureKind.CONNECTION and refused is not None:
            return self._outage(refused, cause)
        if cause is None:
            return DeadlineExceeded("the deadline passed", started=failure.started, **facts)
        return error_from(cause, **facts)

    def _outage(self, refused: Refused, cause: grpc.aio.AioRpcError | None) -> AllRegionsDown:
        regions = {name: str(reason) for name, reason in refused.regions.items()}
        regions |= {report.region: report.reason for report in self.reports}
        why = "; ".join(f"{name}: {reason}" for name, reason in regions.items()) or "no region is configured"
        detail = f" ({cause.details()})" if cause is not None and cause.details() else ""
        return AllRegionsDown(f"no allowed region can serve: {why}{detail}", regions=regions, attempts=self.reports)
