"""Streams of tokens that go on elsewhere, exactly once."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc

from inferwire.attempts import Attempt, Metadata
from inferwire.calls import EventStream, cancels
from inferwire.channels import Fleet
from inferwire.errors import Code, InferwireError, LocalReason
from inferwire.first_token_race import FirstTokenRace, Runner
from inferwire.methods import Method
from inferwire.policy.deadline import Deadline
from inferwire.policy.decision import Step
from inferwire.policy.delivery import Delivery, HeldOutput, StartedFacts, Trim, Verdict, Violation
from inferwire.policy.failure import Failure, FailureKind
from inferwire.policy.resume import ExactlyOnce
from inferwire.prompts import prompt_length
from inferwire.settings import ResumeMode
from inferwire.stall_watch import StallWatch
from inferwire.v1 import generation_pb2

_Event = generation_pb2.StreamGenerateResponse
_SEED_BITS = 32


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
        self._race: FirstTokenRace | None = None
        self._prompt_bytes: int | None = None
        """While the first token of the whole stream is waited for, where streams are hedged."""

    def leave(self) -> None:
        """The caller wants no more: cancel what runs. What is complete stays a success."""
        self._watch.stop()
        if self._race is not None:
            self._race.leave()
        if self._once.is_completed and self._attempt is not None:
            self._attempt.succeeded()
            self.ended(Code.OK)
        super().leave()

    async def next(self) -> Any:
        """The next event, or EOF. Raises an InferwireError with what was delivered."""
        if self._attempt is None:
            self._original = self._amended(self.prepared())
            self._begin(await self._moving(self.journey.first()), self._original)
            if self.fleet.config.hedge.enabled:
                self._hedge()
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
                if not watch.has_stalled or cancels() > self._cancels:
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
            self._watch.progressed(event.progress.prompt_tokens_done)
            return once.progress()
        if kind == "prompt_logprobs":
            return once.prompt_logprobs(event.prompt_logprobs.token_offset, len(event.prompt_logprobs.tokens))
        return Delivery.DELIVER

    def _taken(self) -> None:
        self._has_started = True
        self._watch.started()
        if self._attempt is not None:
            self._attempt.answered()
        self.journey.taken()

    def _token_came(self) -> None:
        self._has_token = True
        self._watch.token()
        if self._attempt is not None:
            self._attempt.first_token()
            if self._prompt_bytes is not None:
                self.fleet.hedging.observe(self._prompt_bytes, self._attempt.first_token_s or 0.0)
                self._prompt_bytes = None
        if self._race is not None:
            self._read, self._race = self._race.lead.read, None
        if self._lost_at is not None:
            self._longest_resume_s = max(self._longest_resume_s, self.fleet.clock() - self._lost_at)
            self._lost_at = None

    def _begin(self, attempt: Attempt, request: Any) -> None:
        self._expect_attempt()
        super()._begin(attempt, request)
        self._watch.begin(self.call)

    def _expect_attempt(self) -> None:
        self._once.begin_attempt()
        self._has_started = self._has_token = False
        self._cancels = cancels()

    def _hedge(self) -> None:
        """Let a second attempt start beside the first one if its first token is late."""
        assert self._attempt is not None  # noqa: S101 it has begun
        hedging = self.fleet.hedging
        hedging.requested()
        self._prompt_bytes = prompt_length(self._original)
        delay_s = hedging.delay_s(self._prompt_bytes, self.fleet.clock())
        if delay_s is not None:
            first = Runner(self._attempt, self.call, self._read)
            self._race = FirstTokenRace(
                first, delay_s, rival=self._rival, dropped=self._drop_one_of_two, leads=self._follow
            )
            self._read = self._race.next

    def _rival(self) -> Runner | None:
        assert self._attempt is not None  # noqa: S101 it is the slow one
        attempt = self.journey.beside(self._attempt)
        if attempt is None:
            return None
        request = generation_pb2.GenerateRequest()
        request.CopyFrom(self._original)
        if self._once.binding_fingerprint:
            # What was said of the first one must hold for the second.
            request.expected_model.fingerprint = self._once.binding_fingerprint
        return Runner(attempt, self.started_call(attempt, request))

    def _drop_one_of_two(self, runner: Runner, error: BaseException) -> None:
        is_lead = runner.attempt is self._attempt
        if isinstance(error, grpc.aio.AioRpcError):
            failure = self.failure(error, has_started=is_lead and self._has_started)
        elif isinstance(error, StopAsyncIteration):
            failure = self._protocol_failure()
        else:
            failure = self._stalled()
        self.journey.dropped(runner.attempt, failure)

    def _follow(self, runner: Runner) -> None:
        """The hedge has overtaken: it is the stream's attempt from now on."""
        if self._attempt is not None and self._prompt_bytes is not None:
            self.fleet.hedging.observe(self._prompt_bytes, self._attempt.elapsed_s)
        self._attempt, self.call = runner.attempt, runner.call
        self.journey.leads(runner.attempt)
        self._expect_attempt()
        self._watch.stop()
        self._watch.begin(self.call)

    async def _go_on(self, failure: Failure, cause: grpc.aio.AioRpcError | None, error: InferwireError | None) -> None:
        """Begin the attempt after a failed one, or raise."""
        self._watch.stop()
        self._race = self._prompt_bytes = None
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
        if self.fleet.config.hedge.enabled and not request.sampling.HasField("seed"):
            # Two attempts that run at once must say the same.
            request.sampling.seed = self.fleet.rng.getrandbits(_SEED_BITS)
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
