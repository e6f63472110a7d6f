"""One generation's life: wait, run, release text, end. It writes the event log; readers never touch the engine."""

from __future__ import annotations

import asyncio
import enum
import time
from collections.abc import Callable, Sequence
from functools import partial

from inferwire_server.domain.caller import Caller
from inferwire_server.domain.engine import (
    Cancelled,
    Engine,
    EngineEvent,
    EngineRequest,
    Failed,
    Finished,
    PrefillProgress,
    PromptTokens,
    Tokens,
)
from inferwire_server.domain.errors import CancelledByCaller, Expired, ServiceError
from inferwire_server.domain.generation import (
    Completed,
    Continuation,
    FinishReason,
    Generation,
    OutputFinished,
    Progress,
    PromptLogprobs,
    Stage,
    Started,
    Timings,
    Usage,
)
from inferwire_server.domain.model import ModelFacts
from inferwire_server.observability.faults import record_fault
from inferwire_server.scheduling.event_log import EventLog
from inferwire_server.scheduling.generation_names import cache_namespace, prompt_digest
from inferwire_server.scheduling.observer import GenerationObserver
from inferwire_server.scheduling.session_output import SessionOutput
from inferwire_server.text.output import OutputText, Released

OutputTextFactory = Callable[[Generation, Sequence[int]], OutputText]
"""Makes the text side of one output from the generation and the ids that a resumed output holds already."""


class Phase(enum.Enum):
    """Where a session is."""

    WAITING = "waiting"
    RUNNING = "running"
    ENDED = "ended"


class Session:
    """Runs on the serving loop. `arrived_at` is monotonic seconds."""

    def __init__(
        self,
        generation: Generation,
        caller: Caller,
        facts: ModelFacts,
        *,
        make_text: OutputTextFactory,
        observer: GenerationObserver,
        arrived_at: float,
        names_seed: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.generation = generation
        self.caller = caller
        self.phase = Phase.WAITING
        self.arrived_at = arrived_at
        self.deadline = generation.deadline
        """Of its latest reader, monotonic seconds; None when one waits for as long as it takes."""
        self.on_first_token: Callable[[Session, SessionOutput], None] = _ignore_output
        """Called with each output when its first new token comes."""
        self.on_served: Callable[[Session, int], None] = _ignore_tokens
        """Called with the number of tokens an engine step brought."""
        self.on_ended: Callable[[Session], None] = _ignore
        """Called once, when the outcome is known."""
        self.on_released: Callable[[Session], None] = _ignore
        """Called once, when the engine holds nothing of it any more."""
        self._facts = facts
        self._clock = clock
        self._observer = observer
        self._names_seed = names_seed
        prior = _prior_tokens(generation)
        self.log = EventLog([len(ids) for ids in prior])
        finished = {o.output_index for o in generation.resume.outputs if o.finished} if generation.resume else set()
        self._outputs = [
            SessionOutput(i, make_text(generation, ids), is_finished=i in finished) for i, ids in enumerate(prior)
        ]
        self._prior = prior
        self._has_prior = any(prior)
        self._settled = [output for output in self._outputs if not output.is_finished and self._needs_no_engine(output)]
        for output in self._settled:
            output.is_finished = True
        self._timers: list[asyncio.TimerHandle] = []
        self._engine_requests: list[EngineRequest] | None = None
        self._live_streams = 0
        self._started_at: float | None = None
        self._first_token_at: float | None = None
        self._cached_tokens: int | None = None
        self._prompt_tokens_done: int | None = None

    def __repr__(self) -> str:
        return f"<Session {self.generation.request_id} {self.phase.value}, {self.log!r}>"

    @property
    def is_released(self) -> bool:
        """Whether the engine holds nothing of it."""
        return self.phase is Phase.ENDED and self._live_streams == 0

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens that the engine took from its prefix cache, as far as it has told."""
        return self._cached_tokens or 0

    @property
    def produced_tokens(self) -> int:
        """New tokens that came out of the engine, of all outputs."""
        return sum([output.output_tokens for output in self._outputs])

    @property
    def num_unfinished(self) -> int:
        """Outputs that still need the engine."""
        return len(self.unfinished_outputs())

    @property
    def size_bytes(self) -> int:
        """About what it keeps in memory."""
        return self.log.size_bytes + 40 * len(self.generation.prompt_token_ids)

    def unfinished_outputs(self) -> list[SessionOutput]:
        """Outputs that still need the engine."""
        return [output for output in self._outputs if not output.is_finished]

    def call_at(self, when: float, callback: Callable[[], None]) -> None:
        """Call back at a monotonic time unless the session has ended by then."""
        loop = asyncio.get_running_loop()
        self._timers.append(loop.call_later(max(0.0, when - self._clock()), callback))

    def extend(self, deadline: float | None) -> None:
        """Another reader waits until that deadline."""
        if self.deadline is not None:
            self.deadline = None if deadline is None else max(self.deadline, deadline)

    def end_at_deadline(self) -> None:
        """End as expired once the deadline has passed."""
        if self.deadline is None or self.phase is Phase.ENDED:
            return
        if self._clock() >= self.deadline:
            self.end(Expired("the deadline passed"))
        else:
            self.call_at(self.deadline, self.end_at_deadline)

    def engine_requests(self) -> list[EngineRequest]:
        """One for each output that needs the engine; made once."""
        if self._engine_requests is None:
            self._engine_requests = self._make_engine_requests()
        return self._engine_requests

    def _make_engine_requests(self) -> list[EngineRequest]:
        generation = self.generation
        return [
            EngineRequest(
                id=f"{generation.request_id}/{generation.attempt}/{output.index}/{id(self):x}",
                prompt_token_ids=generation.prompt_token_ids,
                max_output_tokens=generation.max_output_tokens - len(self._prior[output.index]),
                sampling=generation.sampling,
                output_index=output.index,
                stop_token_ids=generation.stop.token_ids,
                min_output_tokens=generation.stop.min_output_tokens,
                ignore_end_of_sequence=generation.stop.ignore_end_of_sequence,
                top_logprobs=generation.top_logprobs,
                prompt_top_logprobs=generation.prompt_top_logprobs if output.index == 0 else None,
                grammar=generation.grammar,
                cache_namespace=cache_namespace(self.caller.tenant, generation.cache_salt),
                bypass_cache=generation.bypass_cache,
                resumed_token_ids=self._prior[output.index],
            )
            for output in self.unfinished_outputs()
        ]

    def begin(self, engine: Engine) -> None:
        """Give every output to the engine. Raises what `Engine.submit` raises, with nothing left behind."""
        requests = self.engine_requests()
        continuation = engine.continuation_of(requests[0]) if requests and self._has_prior else Continuation.FRESH
        for output, request in zip(self.unfinished_outputs(), requests, strict=True):
            try:
                output.stream = engine.submit(request, partial(self._on_engine_event, output))
            except Exception as fault:  # noqa: BLE001 an engine's fault is this generation's end, and nobody else's
                error = fault if isinstance(fault, ServiceError) else record_fault(fault)
                self.end(error)
                raise error from None
            self._live_streams += 1
        self.phase = Phase.RUNNING
        self._started_at = self._clock()
        self._observer.started(self.generation, self.caller, self._started_at - self.arrived_at)
        generation = self.generation
        self.log.start(
            Started(
                request_id=generation.request_id,
                model=self._facts.qualified_name,
                model_fingerprint=self._facts.fingerprint,
                prompt_tokens=len(generation.prompt_token_ids),
                prompt_digest=prompt_digest(generation.prompt_token_ids),
                max_output_tokens=generation.max_output_tokens,
                seed=self._seed_in_force(engine),
                continuation=continuation,
            )
        )
        for output in self._settled:
            stop = output.text.stop
            reason = FinishReason.LENGTH if stop is None else FinishReason.STOP
            self._finish(output, reason, stop_string=stop)
        self._complete_if_done()

    def end(self, error: ServiceError) -> None:
        """End with an error, at once for readers and within a step for the engine. A second end changes nothing."""
        if self.phase is Phase.ENDED:
            return
        error.started = self.phase is Phase.RUNNING
        if error.started:
            error.retry_after_s = None
        self._conclude(error)
        for output in self._outputs:
            if output.stream is not None:
                output.stream.cancel()
        self._release_if_free()

    def usage(self) -> Usage:
        """What has been released until now."""
        return Usage(
            prompt_tokens=len(self.generation.prompt_token_ids),
            cached_tokens=self._cached_tokens,
            output_tokens=sum(self.log.output_tokens(output.index) for output in self._outputs),
            resumed_tokens=sum(len(ids) for ids in self._prior),
        )

    def timings(self) -> Timings:
        """The total is until now."""
        return Timings(
            queue_time_s=None if self._started_at is None else self._started_at - self.arrived_at,
            first_token_time_s=None if self._first_token_at is None else self._first_token_at - self.arrived_at,
            total_time_s=self._clock() - self.arrived_at,
        )

    def progress(self) -> Progress:
        """Where it is; the queue's part is filled in by whoever knows the queue."""
        if self.phase is Phase.WAITING:
            return Progress(stage=Stage.QUEUED)
        if self._first_token_at is None:
            return Progress(stage=Stage.PREFILL, prompt_tokens_done=self._prompt_tokens_done)
        return Progress(stage=Stage.DECODE)

    def _seed_in_force(self, engine: Engine) -> int | None:
        sampling = self.generation.sampling
        is_used = "sampling.seed" in engine.capabilities.request_fields
        return sampling.seed if is_used and (self._names_seed or not sampling.is_greedy) else None

    def _needs_no_engine(self, output: SessionOutput) -> bool:
        """Whether the tokens that a resumed output brought are already all of it."""
        return output.text.stop is not None or len(self._prior[output.index]) >= self.generation.max_output_tokens

    def _on_engine_event(self, output: SessionOutput, event: EngineEvent) -> None:
        try:
            if type(event) is Tokens:
                if self.phase is Phase.RUNNING and not output.is_finished:
                    self._on_tokens(output, event)
            else:
                self._on_rare_event(output, event)
        except Exception as fault:  # noqa: BLE001 a sink must not raise: the engine serves others too
            self.end(record_fault(fault))

    def _on_rare_event(self, output: SessionOutput, event: EngineEvent) -> None:
        if isinstance(event, PrefillProgress):
            self._prompt_tokens_done = event.prompt_tokens_done
        elif isinstance(event, PromptTokens):
            if self.phase is Phase.RUNNING:
                self.log.prompt(PromptLogprobs(token_offset=0, tokens=event.tokens))
        elif not isinstance(event, Tokens):
            self._on_terminal(output, event)

    def _on_tokens(self, output: SessionOutput, event: Tokens) -> None:
        now = self._clock()
        count = len(event.token_ids)
        if self._first_token_at is None:
            self._first_token_at = now
            since_started_s = now - (self._started_at or now)
            self._observer.first_token(self.generation, self.caller, now - self.arrived_at, since_started_s)
        output.output_tokens += count
        if output.last_tokens_at is None:
            gap = None
            self.on_first_token(self, output)
        else:
            gap = now - output.last_tokens_at
        output.last_tokens_at = now
        self._observer.tokens(self.generation, self.caller, count, gap)
        self.on_served(self, count)
        released = output.text.push(event.token_ids)
        if released.token_count == count and not output.pending_ids:
            self.log.append(output.index, event.token_ids, released.text, event.logprobs)
        else:
            output.pending_ids += event.token_ids
            output.pending_logprobs += event.logprobs
            self._release(output, released)
        if released.stop is not None:
            self._finish(output, FinishReason.STOP, stop_string=released.stop)
            if output.stream is not None:
                output.stream.cancel()

    def _on_terminal(self, output: SessionOutput, event: Finished | Cancelled | Failed) -> None:
        output.stream = None
        self._live_streams -= 1
        if not isinstance(event, Failed) and event.cached_tokens is not None:
            self._cached_tokens = max(self._cached_tokens or 0, event.cached_tokens)
        if self.phase is Phase.RUNNING and not output.is_finished:
            if isinstance(event, Finished):
                tail = output.text.finish()
                self._release(output, tail)
                if tail.stop is not None:
                    self._finish(output, FinishReason.STOP, stop_string=tail.stop)
                else:
                    self._finish(
                        output, event.reason, end_token_id=event.end_token_id, stop_token_id=event.stop_token_id
                    )
            else:
                self.end(_as_service_error(event))
        self._complete_if_done()
        self._release_if_free()

    def _release(self, output: SessionOutput, released: Released) -> None:
        count = released.token_count
        if not count and not released.text:
            return
        self.log.append(output.index, output.pending_ids[:count], released.text, output.pending_logprobs[:count])
        del output.pending_ids[:count]
        del output.pending_logprobs[:count]

    def _finish(
        self,
        output: SessionOutput,
        reason: FinishReason,
        *,
        end_token_id: int | None = None,
        stop_string: str | None = None,
        stop_token_id: int | None = None,
    ) -> None:
        output.is_finished = True
        output.pending_ids.clear()
        output.pending_logprobs.clear()
        self.log.finish(
            OutputFinished(
                output_index=output.index,
                reason=reason,
                output_tokens=self.log.output_tokens(output.index),
                end_token_id=end_token_id,
                stop_string=stop_string,
                stop_token_id=stop_token_id,
            )
        )

    def _complete_if_done(self) -> None:
        if self.phase is not Phase.RUNNING or self._live_streams or not all(o.is_finished for o in self._outputs):
            return
        self._conclude(Completed(usage=self.usage(), timings=self.timings()))
        self._release_if_free()

    def _conclude(self, outcome: Completed | ServiceError) -> None:
        self.phase = Phase.ENDED
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()
        now = self._clock()
        decode_s = None if self._first_token_at is None else now - self._first_token_at
        produced = self.produced_tokens
        self._observer.ended(self.generation, self.caller, outcome, now - self.arrived_at, decode_s, produced)
        self.log.close(outcome)
        self.on_ended(self)

    def _release_if_free(self) -> None:
        if self.is_released:
            released, self.on_released = self.on_released, _ignore
            released(self)


def _prior_tokens(generation: Generation) -> list[tuple[int, ...]]:
    prior: list[tuple[int, ...]] = [()] * generation.count
    if generation.resume is not None:
        for output in generation.resume.outputs:
            prior[output.output_index] = output.token_ids
    return prior


def _as_service_error(event: Cancelled | Failed) -> ServiceError:
    if isinstance(event, Cancelled):
        return CancelledByCaller("the generation was cancelled")
    return event.error if isinstance(event.error, ServiceError) else record_fault(event.error)


def _ignore(session: Session) -> None:
    return None


def _ignore_output(session: Session, output: SessionOutput) -> None:
    return None


def _ignore_tokens(session: Session, count: int) -> None:
    return None
