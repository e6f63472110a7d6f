"""Calls that survive: unary ones are sent again where that is safe, streams go on elsewhere, exactly once."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from typing import Any

import grpc

from inferwire.attempts import Attempt, Metadata, Method, attempt_metadata, failure_of
from inferwire.channels import Fleet
from inferwire.errors import Code, InferwireError, LocalReason
from inferwire.journey import Journey
from inferwire.policy.deadline import Deadline
from inferwire.policy.decision import Step
from inferwire.policy.delivery import Delivery, HeldOutput, StartedFacts, Trim, Verdict, Violation
from inferwire.policy.failure import Failure, FailureKind
from inferwire.policy.resume import ExactlyOnce
from inferwire.policy.stall import StallTimer
from inferwire.settings import ResumeMode
from inferwire.v1 import generation_pb2

_Event = generation_pb2.StreamGenerateResponse


class Exchange:
    """What unary calls and streams have in common: where the call is, and how its parts are numbered."""

    def __init__(
        self,
        fleet: Fleet,
        method: Method,
        metadata: Metadata,
        deadline: Deadline,
        *,
        may_retry: bool,
        is_stream: bool = False,
    ) -> None:
        self.fleet = fleet
        self.method = method
        self.journey = Journey(fleet, deadline, is_stream=is_stream, may_retry=may_retry)
        self.number = 0
        """Of the latest attempt, from 0."""
        self.resumed_at: list[int] = []
        """For each resume, the tokens delivered before it."""
        self.call: Any = None
        """The gRPC call of the latest attempt."""
        self._metadata = metadata
        self._base_attempt = 0

    def trailers(self) -> tuple[tuple[str, str], ...]:
        """How the call was served, for whoever wants to know."""
        link = self.journey.served_by
        facts = [("x-inferwire-attempts", str(self.number + 1))]
        if link is not None:
            facts.append(("x-inferwire-served-by", link.endpoint.key))
        facts += [("x-inferwire-resumed-at", str(at)) for at in self.resumed_at]
        return tuple(facts)

    def send(self, attempt: Attempt, request: Any, *, is_stream: bool) -> Any:
        """Start the attempt's gRPC call."""
        if self.method.is_generation:
            request.attempt = self._base_attempt + self.number
        channel = attempt.link.channel
        make = channel.unary_stream if is_stream else channel.unary_unary
        callable_: Any = make(self.method.path, self.method.serialize, self.method.deserialize)
        self.call = callable_(
            request,
            timeout=self.journey.remaining(),
            metadata=attempt_metadata(self._metadata, self.number),
        )
        return self.call

    def prepared(self, request: Any) -> Any:
        """A copy of a generation request with an id, so that no attempt runs beside another unnoticed."""
        if not self.method.is_generation:
            return request
        copy = generation_pb2.GenerateRequest()
        copy.CopyFrom(request)
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

    async def run(self, request: Any) -> Any:
        """The response. Raises an InferwireError."""
        request = self.prepared(request)
        attempt = await self.journey.first()
        while True:
            try:
                response = await self.send(attempt, request, is_stream=False)
            except grpc.aio.AioRpcError as error:
                attempt, _ = await self.journey.next(attempt, self.failure(error, has_started=False), error)
                self.number += 1
            except BaseException:
                attempt.abandoned()
                raise
            else:
                attempt.succeeded()
                return response


class PlainStream(Exchange):
    """A stream that is not a generation: placed like a call, never continued."""

    async def events(self, request: Any) -> AsyncIterator[Any]:
        """What the server sends. Raises an InferwireError."""
        attempt = await self.journey.first()
        has_events = False
        while True:
            call = self.send(attempt, request, is_stream=True)
            try:
                while (event := await call.read()) is not grpc.aio.EOF:
                    has_events = True
                    attempt.answered()
                    yield event
            except grpc.aio.AioRpcError as error:
                attempt, _ = await self.journey.next(attempt, self.failure(error, has_started=has_events), error)
                self.number += 1
            except BaseException:
                call.cancel()
                attempt.abandoned()
                raise
            else:
                attempt.succeeded()
                return


class GenerationStream(Exchange):
    """A stream of tokens, exactly once."""

    def __init__(
        self, fleet: Fleet, method: Method, metadata: Metadata, deadline: Deadline, *, may_retry: bool
    ) -> None:
        super().__init__(fleet, method, metadata, deadline, may_retry=may_retry, is_stream=True)
        self._once = ExactlyOnce(mode=ResumeMode.NEVER)
        self._has_token = False

    async def events(self, request: generation_pb2.GenerateRequest) -> AsyncIterator[_Event]:
        """Events as from one server that never fails. Raises an InferwireError with what was delivered."""
        self._once = _exactly_once(request, self.fleet.config.resume.mode)
        original = self._amended(self.prepared(request))
        sent = original
        attempt = await self.journey.first()
        while True:
            self._once.begin_attempt()
            call = self.send(attempt, sent, is_stream=True)
            watch = StallWatch(self.fleet, call)
            ending = _Ending()
            try:
                async for event in self._delivered(attempt, call, watch, ending):
                    yield event
            except BaseException:
                call.cancel()
                attempt.abandoned()
                raise
            finally:
                watch.stop()
            if ending.failure is None:
                attempt.succeeded()
                return
            attempt, step = await self.journey.next(
                attempt, ending.failure, ending.cause, error=ending.error, partial=self._once.partial_outputs()
            )
            self.number += 1
            sent = self._continued(original) if step is Step.RESUME and self._once.has_started else original

    async def _delivered(
        self, attempt: Attempt, call: Any, watch: StallWatch, ending: _Ending
    ) -> AsyncIterator[_Event]:
        """What the caller gets of one attempt; how it ended is left in `ending`."""
        has_started = False
        try:
            while (event := await call.read()) is not grpc.aio.EOF:
                kind = event.WhichOneof("event")
                has_started = has_started or kind == "started"
                watch.heard(is_token=kind == "delta")
                verdict = self._judge(attempt, kind, event)
                if isinstance(verdict, Violation):
                    call.cancel()
                    ending.broken(verdict, self._once, self.journey)
                    return
                if verdict is Delivery.DROP:
                    continue
                if isinstance(verdict, Trim):
                    _trim(event, verdict)
                if kind == "delta" and self._once.strips_token_ids:
                    event.delta.ClearField("token_ids")
                yield event
            violation = self._once.ended()
            if violation is not None:
                ending.broken(violation, self._once, self.journey)
        except grpc.aio.AioRpcError as error:
            # Whatever becomes of the status, a stream that has shown Completed is whole.
            if not self._once.is_completed:
                ending.cause, ending.failure = error, self.failure(error, has_started=has_started)
        except asyncio.CancelledError:
            if not watch.has_stalled:
                raise
            ending.failure = Failure(kind=FailureKind.STALL, code=Code.UNAVAILABLE, started=has_started)

    def _amended(self, request: generation_pb2.GenerateRequest) -> generation_pb2.GenerateRequest:
        """Ask also for what continuing needs: token ids, and signs of life."""
        request.output.token_ids = self._once.needs_token_ids
        interval_s = self.fleet.config.stall.progress_interval_s
        if interval_s is not None and not request.HasField("progress_interval"):
            request.progress_interval.FromMilliseconds(round(interval_s * 1000))
        return request

    def _continued(self, original: generation_pb2.GenerateRequest) -> generation_pb2.GenerateRequest:
        """The request for the rest of the stream."""
        facts = self._once.continuation()
        self.resumed_at.append(sum(len(held.token_ids) for held in facts.outputs))
        request = generation_pb2.GenerateRequest()
        request.CopyFrom(original)
        request.ClearField("resume")
        request.resume.prompt_digest = facts.prompt_digest
        for held in facts.outputs:
            request.resume.outputs.add(output_index=held.output_index, token_ids=held.token_ids, finished=held.finished)
        if facts.seed is not None:
            request.sampling.seed = facts.seed
        if facts.expected_fingerprint:
            request.expected_model.fingerprint = facts.expected_fingerprint
        return request

    def _judge(self, attempt: Attempt, kind: str | None, event: _Event) -> Verdict:
        once = self._once
        if kind == "delta":
            delta = event.delta
            if not self._has_token:
                self._has_token = True
                attempt.first_token()
            return once.delta(delta.output_index, delta.token_offset, delta.token_count, delta.token_ids, delta.text)
        if kind == "started":
            attempt.answered()
            self.journey.taken()
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


class _Ending:
    """How an attempt of a stream ended; nothing set is well."""

    def __init__(self) -> None:
        self.failure: Failure | None = None
        self.cause: grpc.aio.AioRpcError | None = None
        self.error: InferwireError | None = None

    def broken(self, violation: Violation, once: ExactlyOnce, journey: Journey) -> None:
        """The stream broke the contract."""
        kind = violation.kind.error
        self.failure = Failure(kind=FailureKind.PROTOCOL, code=kind.default_code, started=once.has_started)
        self.error = kind(
            violation.message,
            reason=LocalReason.PROTOCOL,
            started=once.has_started,
            partial_outputs=once.partial_outputs(),
            events_so_far=once.events_delivered,
            attempts=journey.reports,
        )


class StallWatch:
    """Cancels a call that has been silent for too long. One timer a stream, moved only when it fires."""

    def __init__(self, fleet: Fleet, call: Any) -> None:
        self.has_stalled = False
        self._fleet = fleet
        self._call = call
        self._timer = StallTimer(fleet.config.stall, fleet.clock())
        self._handle: asyncio.TimerHandle | None = None
        self._has_token = False
        self._arm()

    def heard(self, *, is_token: bool) -> None:
        """Something came."""
        self._timer.heard(self._fleet.clock(), token=is_token)
        if is_token and not self._has_token:
            self._has_token = True
            self.stop()
            self._arm()

    def stop(self) -> None:
        """The call has ended."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _arm(self) -> None:
        at = self._timer.expires_at
        if at is not None:
            delay_s = max(0.0, at - self._fleet.clock())
            self._handle = asyncio.get_running_loop().call_later(delay_s, self._due)

    def _due(self) -> None:
        if self._timer.is_stalled(self._fleet.clock()):
            self.has_stalled = True
            self._call.cancel()
        else:
            self._arm()


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
