"""Calls that survive: unary ones are sent again where that is safe, streams go on elsewhere, exactly once."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable
from typing import Any, TypeVar

import grpc

from inferwire.attempts import Attempt, Metadata, attempt_metadata, failure_of
from inferwire.channels import Fleet
from inferwire.errors import Code, InferwireError, LocalReason
from inferwire.journey import Journey
from inferwire.methods import Method
from inferwire.observation import CallEnded
from inferwire.policy.deadline import Deadline
from inferwire.policy.decision import Step
from inferwire.policy.delivery import Delivery, HeldOutput, StartedFacts, Trim, Verdict, Violation
from inferwire.policy.failure import Failure, FailureKind
from inferwire.policy.resume import ExactlyOnce
from inferwire.settings import ResumeMode
from inferwire.stall_watch import StallWatch
from inferwire.trace_context import TRACE_KEY, trace_id
from inferwire.v1 import generation_pb2

_T = TypeVar("_T")
_Event = generation_pb2.StreamGenerateResponse


class Exchange:
    """What unary calls and streams have in common: where the call is, and how its parts are numbered."""

    def __init__(
        self, fleet: Fleet, method: Method, metadata: Metadata, deadline: Deadline, request: Any, *, may_retry: bool
    ) -> None:
        self.fleet = fleet
        self.method = method
        self.journey = Journey(fleet, method, deadline, may_retry=may_retry)
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
        """Start the attempt's gRPC call."""
        if self.method.is_generation:
            request.attempt = self._base_attempt + attempt.number
        self.call = attempt.link.callable_for(self.method)(
            request,
            timeout=self.journey.remaining(),
            metadata=attempt_metadata(self._metadata, attempt.number),
        )
        return self.call

    def prepared(self) -> Any:
        """A copy of a generation request with an id, so that no attempt runs beside another unnoticed."""
        if not self.method.is_generation:
            return self._request
        copy = generation_pb2.GenerateRequest()
        copy.CopyFrom(self._request)
        self._base_attempt = copy.attempt
        if not copy.request_id:
            copy.request_id = secrets.token_hex(12)
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
        attempt = self._attempt
        while True:
            try:
                response = await self.call
            except grpc.aio.AioRpcError as error:
                attempt, _ = await self.journey.next(attempt, self.failure(error, has_started=False), error)
                self._send(attempt)
            except BaseException:
                self.call.cancel()
                attempt.abandoned()
                raise
            else:
                attempt.succeeded()
                return response

    def leave(self) -> None:
        """The caller wants no more."""
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
            self.send(attempt, self._request)
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


class TokenStream(EventStream):
    """A stream of tokens, exactly once: events as from one server that never fails."""

    def __init__(
        self, fleet: Fleet, method: Method, metadata: Metadata, deadline: Deadline, request: Any, *, may_retry: bool
    ) -> None:
        super().__init__(fleet, method, metadata, deadline, request, may_retry=may_retry)
        self._once = _exactly_once(request, fleet.config.resume.mode)
        self._watch = StallWatch(fleet)
        self._original: Any = None
        self._has_started = False
        """Whether the latest attempt has shown Started."""
        self._has_token = False
        """Whether the latest attempt has shown a delta."""
        self._lost_at: float | None = None
        self._cancels = 0

    def leave(self) -> None:
        """The caller wants no more: cancel what runs. What is complete stays a success."""
        self._watch.stop()
        if self._once.is_completed and self._attempt is not None:
            self._attempt.succeeded()
            self.ended(Code.OK)
        super().leave()

    async def next(self) -> Any:
        """The next event, or EOF. Raises an InferwireError with what was delivered."""
        if self._attempt is None:
            self._original = self._amended(self.prepared())
            self._begin(await self._moving(self.journey.first()), self._original)
        watch, once = self._watch, self._once
        while True:
            watch.waits_since = since = watch.clock()
            if watch.token_waits_since is None:
                watch.token_waits_since = since
            try:
                event = await self._read()
            except StopAsyncIteration:
                violation = once.ended()
                if violation is None:
                    return self._finish()
                await self._go_on(self._protocol_failure(), None, self._broken(violation))
                continue
            except grpc.aio.AioRpcError as error:
                # Whatever becomes of the status, a stream that has shown Completed is whole.
                if once.is_completed:
                    return self._finish()
                await self._go_on(self.failure(error, has_started=self._has_started), error, None)
                continue
            except asyncio.CancelledError:
                if not watch.has_stalled or _cancels() > self._cancels:
                    raise
                if once.is_completed:
                    return self._finish()
                await self._go_on(self._stalled(), None, None)
                continue
            watch.waits_since = None
            verdict = self._judge(event)
            if verdict is Delivery.DELIVER:
                return event
            if isinstance(verdict, Violation):
                self.call.cancel()
                await self._go_on(self._protocol_failure(), None, self._broken(verdict))
            elif isinstance(verdict, Trim):
                _trim(event, verdict)
                return event

    def _judge(self, event: _Event) -> Verdict:
        # Deltas first: they are nearly all there is.
        if not event.HasField("delta"):
            return self._judge_rarer(event.WhichOneof("event"), event)
        if not self._has_token:
            self._token_came()
        self._watch.token_waits_since = None
        once, delta = self._once, event.delta
        ids = delta.token_ids
        verdict = once.delta(delta.output_index, delta.token_offset, delta.token_count, ids, delta.text)
        if once.strips_token_ids:
            delta.ClearField("token_ids")
        return verdict

    def _judge_rarer(self, kind: str | None, event: _Event) -> Verdict:
        once = self._once
        if kind == "started":
            self._taken()
            started = event.started
            return once.started(
                StartedFacts(
                    model_fingerprint=started.model_fingerprint,
                    prompt_digest=started.prompt_digest,
                    seed=started.seed if started.HasField("seed") else None,
                )
            )
        if kind == "finished":
            finished = event.finished
            return once.finished(finished.output_index, finished.reason, finished.output_tokens)
        if kind == "completed":
            return once.completed()
        if kind == "progress":
            return once.progress()
        if kind == "prompt_logprobs":
            return once.prompt_logprobs(event.prompt_logprobs.token_offset, len(event.prompt_logprobs.tokens))
        return Delivery.DELIVER

    def _taken(self) -> None:
        self._has_started = True
        if self._attempt is not None:
            self._attempt.answered()
        self.journey.taken()

    def _token_came(self) -> None:
        self._has_token = True
        self._watch.token()
        if self._attempt is not None:
            self._attempt.first_token()
        if self._lost_at is not None:
            self._longest_resume_s = max(self._longest_resume_s, self.fleet.clock() - self._lost_at)
            self._lost_at = None

    def _begin(self, attempt: Attempt, request: Any) -> None:
        self._once.begin_attempt()
        self._has_started = self._has_token = False
        self._cancels = _cancels()
        super()._begin(attempt, request)
        self._watch.begin(self.call)

    async def _go_on(self, failure: Failure, cause: grpc.aio.AioRpcError | None, error: InferwireError | None) -> None:
        """Begin the attempt after a failed one, or raise."""
        self._watch.stop()
        once = self._once
        if self._lost_at is None and once.has_started:
            self._lost_at = self.fleet.clock()
        assert self._attempt is not None  # noqa: S101 it is the one that failed
        delivered = {"partial_outputs": once.partial_outputs(), "events_so_far": once.events_delivered}
        moved = self.journey.next(self._attempt, failure, cause, error=error, delivered=delivered)
        following, step = await self._moving(moved)
        is_continued = step is Step.RESUME and once.has_started
        self._begin(following, self._continued() if is_continued else self._original)

    def _finish(self) -> Any:
        self._watch.stop()
        if self._attempt is not None:
            self._attempt.succeeded()
        return grpc.aio.EOF

    def _stalled(self) -> Failure:
        return Failure(kind=FailureKind.STALL, code=Code.UNAVAILABLE, started=self._has_started)

    def _protocol_failure(self) -> Failure:
        return Failure(kind=FailureKind.PROTOCOL, code=Code.DATA_LOSS, started=self._once.has_started)

    def _broken(self, violation: Violation) -> InferwireError:
        once = self._once
        return violation.kind.error(
            violation.message,
            reason=LocalReason.PROTOCOL,
            started=once.has_started,
            partial_outputs=once.partial_outputs(),
            events_so_far=once.events_delivered,
        )

    def _amended(self, request: generation_pb2.GenerateRequest) -> generation_pb2.GenerateRequest:
        """Ask also for what continuing needs: token ids, and signs of life."""
        request.output.token_ids = self._once.needs_token_ids
        interval_s = self.fleet.config.stall.progress_interval_s
        if interval_s is not None and not request.HasField("progress_interval"):
            request.progress_interval.FromMilliseconds(round(interval_s * 1000))
        return request

    def _continued(self) -> generation_pb2.GenerateRequest:
        """The request for the rest of the stream."""
        facts = self._once.continuation()
        self.resumed_at.append(sum(len(held.token_ids) for held in facts.outputs))
        request = generation_pb2.GenerateRequest()
        request.CopyFrom(self._original)
        request.ClearField("resume")
        request.resume.prompt_digest = facts.prompt_digest
        for held in facts.outputs:
            request.resume.outputs.add(output_index=held.output_index, token_ids=held.token_ids, finished=held.finished)
        if facts.seed is not None:
            request.sampling.seed = facts.seed
        if facts.expected_fingerprint:
            request.expected_model.fingerprint = facts.expected_fingerprint
        return request


def _current_task() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:
        # Dropped outside of the loop.
        return None


def _cancels() -> int:
    """How often the present task was told to stop."""
    task = asyncio.current_task()
    return 0 if task is None else task.cancelling()


def _exactly_once(request: generation_pb2.GenerateRequest, mode: ResumeMode) -> ExactlyOnce:
    output = request.output
    return ExactlyOnce(
        mode=mode,
        outputs=output.count if output.HasField("count") else 1,
        wants_token_ids=output.token_ids,
        wants_progress=request.HasField("progress_interval"),
        held=[HeldOutput(each.output_index, tuple(each.token_ids), each.finished) for each in request.resume.outputs],
    )


def _trim(event: _Event, verdict: Trim) -> None:
    """Leave out what the caller has already."""
    if event.HasField("prompt_logprobs"):
        del event.prompt_logprobs.tokens[: verdict.skip_tokens]
        event.prompt_logprobs.token_offset += verdict.skip_tokens
        return
    delta = event.delta
    delta.text = verdict.text
    delta.token_offset += verdict.skip_tokens
    delta.token_count -= verdict.skip_tokens
    del delta.token_ids[: verdict.skip_tokens]
    del delta.logprobs[: verdict.skip_tokens]
