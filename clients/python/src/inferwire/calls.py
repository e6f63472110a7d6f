"""Calls that survive: they are sent again where that is safe. What goes on in mid-stream is in `token_stream`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, TypeVar

import grpc

from inferwire.attempts import Attempt, Metadata, attempt_metadata, failure_of
from inferwire.channels import Fleet
from inferwire.errors import Code
from inferwire.journey import Journey
from inferwire.methods import Method
from inferwire.observation import CallEnded
from inferwire.policy.deadline import Deadline
from inferwire.policy.failure import Failure, FailureKind
from inferwire.prompts import affinity_key
from inferwire.reply_watch import ReplyWatch
from inferwire.trace_context import TRACE_KEY, trace_id
from inferwire.v1 import generation_pb2

_T = TypeVar("_T")


class Exchange:
    """What unary calls and streams have in common: where the call is, and how its parts are numbered."""

    def __init__(
        self, fleet: Fleet, method: Method, metadata: Metadata, deadline: Deadline, request: Any, *, may_retry: bool
    ) -> None:
        self.fleet = fleet
        self.method = method
        prefix_bytes = fleet.config.affinity.prefix_bytes
        key = affinity_key(request, metadata, prefix_bytes) if method.is_generation else None
        self.journey = Journey(fleet, method, deadline, may_retry=may_retry, key=key)
        self.resumed_at: list[int] = []
        """For each resume, the tokens delivered before it."""
        self.call: Any = None
        """The gRPC call of the latest attempt."""
        self._metadata = metadata
        self._request = request
        self._base_attempt = 0
        self._began = fleet.clock()
        self._longest_resume_s = 0.0
        self._has_ended = False

    def trailers(self) -> tuple[tuple[str, str], ...]:
        """How the call was served, for whoever wants to know."""
        link = self.journey.served_by
        facts = [("x-inferwire-attempts", str(self.journey.num_attempts))]
        if link is not None:
            facts.append(("x-inferwire-served-by", link.endpoint.key))
        facts += [("x-inferwire-resumed-at", str(at)) for at in self.resumed_at]
        return tuple(facts)

    def ended(self, code: Code, reason: str = "") -> None:
        """Tell the observer, once."""
        if self._has_ended:
            return
        self._has_ended = True
        if not self.resumed_at and not self.fleet.announcer.wants(code):
            return
        self.fleet.announcer.call_ended(
            CallEnded(
                method=self.method.path,
                code=code,
                reason=reason,
                attempts=self.journey.num_attempts,
                resumed_at=tuple(self.resumed_at),
                longest_resume_s=self._longest_resume_s,
                duration_s=self.fleet.clock() - self._began,
                trace_id=trace_id(str(dict(self._metadata).get(TRACE_KEY, ""))),
            )
        )

    def send(self, attempt: Attempt, request: Any) -> Any:
        """Start the attempt's gRPC call, which is the latest from now on."""
        self.call = self.started_call(attempt, request)
        return self.call

    def started_call(self, attempt: Attempt, request: Any) -> Any:
        """Start a gRPC call for an attempt."""
        if self.method.is_generation:
            request.attempt = self._base_attempt + attempt.number
        return attempt.link.start(
            self.method,
            request,
            timeout=self.journey.remaining(),
            metadata=attempt_metadata(self.fleet.authorization(self._metadata), attempt.number),
        )

    def prepared(self) -> Any:
        """A copy of a generation request with an id, so that no attempt runs beside another unnoticed."""
        if not self.method.is_generation:
            return self._request
        copy = generation_pb2.GenerateRequest()
        copy.CopyFrom(self._request)
        self._base_attempt = copy.attempt
        if not copy.request_id:
            copy.request_id = self.fleet.new_request_id()
        return copy

    def failure(self, error: grpc.aio.AioRpcError, *, has_started: bool) -> Failure:
        """What an attempt's status means for this call."""
        is_past_deadline = self.journey.deadline.has_passed(self.fleet.clock() + 0.01)
        return failure_of(error, has_started=has_started, is_past_deadline=is_past_deadline)


class UnaryExchange(Exchange):
    """A unary call."""

    def __init__(
        self, fleet: Fleet, method: Method, metadata: Metadata, deadline: Deadline, request: Any, *, may_retry: bool
    ) -> None:
        super().__init__(fleet, method, metadata, deadline, request, may_retry=may_retry)
        self._attempt: Attempt | None = None
        self._watch = ReplyWatch(fleet.config.stall.unary_s)

    def begin(self) -> None:
        """Send the first attempt at once, if no name has to be resolved before."""
        if self.fleet.is_ready:
            self._attempt = self.journey.first_at_once()
            self._send_first(self._attempt)

    async def run(self) -> Any:
        """The response. Raises an InferwireError."""
        if self._attempt is None:
            self._attempt = await self.journey.first()
            self._send_first(self._attempt)
        attempt, before = self._attempt, cancels()
        while True:
            try:
                response = await self.call
            except grpc.aio.AioRpcError as error:
                self._watch.stop()
                attempt, _ = await self.journey.next(attempt, self.failure(error, has_started=False), error)
                self._send(attempt)
            except BaseException:
                self._watch.stop()
                if not self._watch.has_stalled or cancels() > before:
                    self.call.cancel()
                    attempt.abandoned()
                    raise
                stalled = Failure(kind=FailureKind.STALL, code=Code.UNAVAILABLE)
                attempt, _ = await self.journey.next(attempt, stalled, None)
                self._send(attempt)
            else:
                self._watch.stop()
                attempt.succeeded()
                return response

    def leave(self) -> None:
        """The caller wants no more."""
        self._watch.stop()
        if self.call is not None:
            self.call.cancel()
        if self._attempt is not None:
            self._attempt.abandoned()
        self.ended(Code.CANCELLED, Code.CANCELLED)

    def _send_first(self, attempt: Attempt) -> None:
        self._request = self.prepared()
        self._send(attempt)

    def _send(self, attempt: Attempt) -> None:
        self._attempt = attempt
        try:
            self._watch.begin(self.send(attempt, self._request), attempt.link)
        except BaseException:
            attempt.abandoned()
            raise


class EventStream(Exchange):
    """A stream that is not a generation: placed like a call, never continued once it has begun."""

    def __init__(
        self, fleet: Fleet, method: Method, metadata: Metadata, deadline: Deadline, request: Any, *, may_retry: bool
    ) -> None:
        super().__init__(fleet, method, metadata, deadline, request, may_retry=may_retry)
        self._attempt: Attempt | None = None
        self._mover: asyncio.Task[Any] | None = None
        """Looks for an endpoint."""
        self._read: Any = None
        """Gives the next message of the latest attempt."""

    async def next(self) -> Any:
        """The next event, or EOF. Raises an InferwireError."""
        if self._attempt is None:
            self._begin(await self._moving(self.journey.first()), self._request)
        while True:
            attempt = self._attempt
            assert attempt is not None  # noqa: S101 set by _begin
            try:
                event = await self._read()
            except StopAsyncIteration:
                attempt.succeeded()
                return grpc.aio.EOF
            except grpc.aio.AioRpcError as error:
                has_events = attempt.is_answered
                failure = self.failure(error, has_started=has_events)
                moved = self.journey.next(attempt, failure, error, may_go_on=not has_events)
                self._begin((await self._moving(moved))[0], self._request)
            else:
                attempt.answered()
                return event

    def leave(self) -> None:
        """The caller wants no more: cancel what runs."""
        if self.call is not None:
            self.call.cancel()
        if self._mover is not None and self._mover is not _current_task():
            # gRPC wakes a reader by itself; one that waits for its next attempt is woken here, and is no less alive.
            self._mover.cancel()
        if self._attempt is not None:
            self._attempt.abandoned()
        self.ended(Code.CANCELLED, Code.CANCELLED)

    async def _moving(self, work: Awaitable[_T]) -> _T:
        """Do what `leave` may have to interrupt."""
        self._mover = asyncio.current_task()
        try:
            return await work
        finally:
            self._mover = None

    def _begin(self, attempt: Attempt, request: Any) -> None:
        self._attempt = attempt
        # Its iterator reads to the end; `read` would drop what had arrived before a loss.
        self._read = self.send(attempt, request).__aiter__().__anext__


def _current_task() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:
        # Dropped outside of the loop.
        return None


def cancels() -> int:
    """How often the present task was told to stop."""
    task = asyncio.current_task()
    return 0 if task is None else task.cancelling()
