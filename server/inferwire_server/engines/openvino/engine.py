"""The CPU engine: requests into a supervised OpenVINO worker, tokens out, nothing taken that the cache cannot hold."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable, Sequence

from inferwire_server.domain.engine import (
    Capabilities,
    EngineHealth,
    EngineLoad,
    EngineRequest,
    EngineSink,
    EngineState,
    Failed,
    ResumeGuarantee,
    StepTotals,
)
from inferwire_server.domain.errors import EngineDown, InvalidRequest, Overloaded, Starting
from inferwire_server.domain.generation import Continuation, Grammar
from inferwire_server.engines.openvino.block_budget import BlockBudget
from inferwire_server.engines.openvino.frames import Add, Cancel, Load, Ready, Step
from inferwire_server.engines.openvino.generation_settings import generation_settings, structured_output, watched_ids
from inferwire_server.engines.openvino.grammar_probe import GrammarProbe
from inferwire_server.engines.openvino.options import BLOCK_TOKENS, OpenVinoOptions, Profile
from inferwire_server.engines.openvino.request_checks import check_grammar, check_request, honoured_fields
from inferwire_server.engines.openvino.resumption import Replay, continuation_of
from inferwire_server.engines.openvino.stream import OpenVinoStream
from inferwire_server.engines.openvino.supervisor import Supervisor


class OpenVinoEngine:
    """One model on OpenVINO GenAI, behind the engine port."""

    def __init__(self, options: OpenVinoOptions) -> None:
        self._options = options
        self._supervisor = Supervisor(_load_frame(options), self, start_timeout_s=options.start_timeout_s)
        self._grammars = GrammarProbe(options.model_path)
        self._budget = BlockBudget(0, BLOCK_TOKENS)
        self._streams: dict[int, OpenVinoStream] = {}
        self._last_sequence = 0
        self._state = EngineState.STARTING
        self._reason = "not started"
        self._subscribers: list[Callable[[], None]] = []
        self._last_step: Step | None = None
        self._totals = StepTotals()
        self._drained = asyncio.Event()
        self._shutdown: asyncio.Future[None] | None = None

    @property
    def capabilities(self) -> Capabilities:
        """Facts for the present worker."""
        options, is_exact = self._options, self._options.profile is Profile.EXACT
        return Capabilities(
            request_fields=honoured_fields(options),
            max_running=options.max_running,
            max_context_tokens=options.max_context_tokens,
            kv_blocks=self._budget.total,
            kv_block_tokens=BLOCK_TOKENS,
            batch_invariant=is_exact,
            resume_guarantee=ResumeGuarantee.EXACT if is_exact else ResumeGuarantee.BEST_EFFORT,
            prefix_caching=options.prefix_caching,
            # What is submitted now is read two steps from now at the latest.
            prefill_tokens_per_step=2 * options.max_batched_tokens,
            shares_prefill=options.prefix_caching,
        )

    @property
    def worker_pid(self) -> int | None:
        """Process id of the worker that owns the pipeline."""
        return self._supervisor.worker_pid

    @property
    def silence_bound_s(self) -> float | None:
        """Seconds of silence after which the worker is replaced; None while it loads."""
        return self._supervisor.silence_bound_s

    async def start(self) -> None:
        """Load the model in a child process and try it. Raises EngineDown when that fails."""
        self._reason = "loading the model"
        try:
            await self._supervisor.start()
        except RuntimeError as error:
            self._change_state(EngineState.DEAD, str(error))
            raise EngineDown(f"the model could not be loaded: {error}. Check its files and the memory left") from error

    def room_for(self, requests: Sequence[EngineRequest]) -> bool:
        """Whether slots and blocks for all of them, at their longest, are free now."""
        return (
            self._state is EngineState.READY
            and len(self._streams) + len(requests) <= self._options.max_running
            and self._budget.has_room_for(sum(map(self._worst_case, requests)))
        )

    def submit(self, request: EngineRequest, sink: EngineSink) -> OpenVinoStream:
        """Take a request. Raises as the port says, and CapabilityAbsent for a field that is not honoured."""
        check_request(request, self._options)
        blocks = self._worst_case(request)
        if self._budget.total and not self._budget.can_ever_hold(blocks):
            message = f"prompt and output need {blocks} cache blocks, and the engine has {self._budget.reservable}"
            raise InvalidRequest("max_output_tokens", message, limit=self._budget.reservable, actual=blocks)
        self._require_ready()
        if not self.room_for((request,)):
            raise Overloaded("the engine has no room for this request now; try again or elsewhere")
        self._last_sequence += 1
        sequence = self._last_sequence
        self._budget.reserve(sequence, blocks)
        is_replayed = self.continuation_of(request) is Continuation.REGENERATED
        stream = OpenVinoStream(
            sequence,
            request,
            sink,
            end_ids=self._options.end_token_ids,
            replay=Replay(list(request.resumed_token_ids)) if is_replayed else None,
            leave=self._leave,
            condemned=lambda: self._condemned(request),
        )
        self._streams[sequence] = stream
        self._drained.clear()
        self._supervisor.send(self._add_frame(sequence, request, is_replayed=is_replayed))
        return stream

    def continuation_of(self, request: EngineRequest) -> Continuation:
        """How `submit` takes up `resumed_token_ids`: FRESH without any, else PREFILLED or REGENERATED.

        A regenerated output whose tokens differ from the resumed ones ends with Failed(ResumeLost).
        """
        return continuation_of(request, self._options.profile)

    def subscribe(self, changed: Callable[[], None]) -> None:
        """Call `changed` when sequences have left the batch or the state has changed."""
        self._subscribers.append(changed)

    def health(self) -> EngineHealth:
        """READY while a worker serves; DEAD while it is being replaced, and after shutdown."""
        return EngineHealth(
            state=self._state,
            last_progress=self._supervisor.last_heard,
            reason=self._reason,
            restarts=self._supervisor.restarts,
        )

    def load(self) -> EngineLoad:
        """What the latest step said; zero usage while nothing runs."""
        step = self._last_step if self._streams else None
        usage = 0.0 if step is None else step.kv_usage
        return EngineLoad(
            running=len(self._streams),
            kv_blocks_used=round(usage * self._budget.total),
            kv_blocks_reserved=self._budget.reserved,
            kv_utilization=usage,
            step_time_s=None if self._last_step is None else self._last_step.seconds,
            batch_size=0 if step is None else len(step.tokens),
            steps=self._totals,
        )

    async def check(self, grammar: Grammar) -> None:
        """Compile a grammar in the probe. Raises InvalidRequest when that fails or costs too much.

        Raises CapabilityAbsent where the model's weights are no GGUF file, and EngineDown when there is no probe.
        """
        check_grammar(grammar, self._options)
        await self._grammars.check(grammar)

    async def shutdown(self, grace_s: float) -> None:
        """Let live requests finish for a while, fail the rest, end the worker. Later calls wait for the first."""
        if self._shutdown is None:
            self._shutdown = asyncio.ensure_future(self._shut_down(grace_s))
        await asyncio.shield(self._shutdown)

    def worker_ready(self, ready: Ready) -> None:
        """A worker has loaded the model."""
        self._budget = BlockBudget(ready.kv_blocks, BLOCK_TOKENS)
        if self._shutdown is None:
            self._change_state(EngineState.READY, "")

    def worker_stepped(self, step: Step) -> None:
        """Fan one step out."""
        self._last_step = step
        self._totals = self._totals.plus(step.seconds, len(step.tokens))
        for sequence, token_ids, logprobs in step.tokens:
            self._streams[sequence].deliver(token_ids, logprobs)
        if not step.ends:
            return
        # All blocks are free before anybody hears of it: a sink may submit the next request at once.
        ended = [(self._streams.pop(sequence), outcome, ending_id) for sequence, outcome, ending_id in step.ends]
        for stream, _, _ in ended:
            self._budget.release(stream.sequence)
        for stream, outcome, ending_id in ended:
            stream.worker_ended(outcome, ending_id)
        if not self._streams:
            self._drained.set()
        self._changed()

    def worker_lost(self, reason: str) -> None:
        """Fail everything that ran in the worker."""
        lost, self._streams = self._streams, {}
        self._budget = BlockBudget(self._budget.total, BLOCK_TOKENS)
        self._last_step = None
        self._drained.set()
        if self._shutdown is None:
            self._change_state(EngineState.DEAD, f"the worker is lost: {reason}; the next one is loading the model")
        for stream in lost.values():
            stream.end_with(Failed(_lost_in_mid_request()))
        self._changed()

    async def _shut_down(self, grace_s: float) -> None:
        self._change_state(EngineState.DEAD, "shut down")
        if self._streams:
            try:
                async with asyncio.timeout(grace_s):
                    await self._drained.wait()
            except TimeoutError:
                pass
        for stream in list(self._streams.values()):
            stream.end_with(Failed(_lost_in_mid_request()))
        await self._grammars.close()
        await self._supervisor.stop()
        self._streams.clear()

    def _require_ready(self) -> None:
        if self._state is EngineState.STARTING:
            raise Starting("the model is being loaded", retry_after_s=self._supervisor.ready_in_s())
        if self._state is EngineState.DEAD:
            is_over = self._shutdown is not None
            retry_after_s = None if is_over else self._supervisor.ready_in_s()
            raise EngineDown("the engine is not running; try another server", retry_after_s=retry_after_s)

    def _worst_case(self, request: EngineRequest) -> int:
        prompt = len(request.prompt_token_ids) + len(request.resumed_token_ids)
        return self._budget.worst_case(prompt + request.max_output_tokens)

    def _add_frame(self, sequence: int, request: EngineRequest, *, is_replayed: bool) -> Add:
        resumed = len(request.resumed_token_ids)
        prompt = array("q", request.prompt_token_ids)
        if not is_replayed:
            prompt.extend(request.resumed_token_ids)
        position = 0 if is_replayed else resumed
        return Add(
            sequence,
            prompt.tobytes(),
            generation_settings(
                request,
                self._options.end_token_ids,
                max_new_tokens=request.max_output_tokens + resumed - position,
                min_new_tokens=max(0, request.min_output_tokens - position),
                position=position,
            ),
            None if request.grammar is None else structured_output(request.grammar),
            watched_ids(request, self._options.end_token_ids),
        )

    def _condemned(self, request: EngineRequest) -> InvalidRequest:
        assert request.grammar is not None  # noqa: S101 the worker drops nothing else for its cost
        return self._grammars.condemn(request.grammar)

    def _leave(self, sequence: int) -> None:
        self._supervisor.send(Cancel(sequence))

    def _change_state(self, state: EngineState, reason: str) -> None:
        self._state, self._reason = state, reason
        self._changed()

    def _changed(self) -> None:
        for changed in self._subscribers:
            changed()


def _load_frame(options: OpenVinoOptions) -> Load:
    return Load(
        model_path=str(options.model_path),
        properties=options.properties(),
        kv_blocks=options.kv_blocks or 0,
        kv_gib=options.kv_gib,
        block_tokens=BLOCK_TOKENS,
        max_running=options.max_running,
        max_batched_tokens=options.max_batched_tokens,
        prefix_caching=options.prefix_caching,
        is_exact=options.profile is Profile.EXACT,
        has_grammars=options.has_grammars,
        vocabulary_size=options.vocabulary_size,
        max_context_tokens=options.max_context_tokens,
    )


def _lost_in_mid_request() -> EngineDown:
    return EngineDown("the engine stopped while this request ran; resume it or start it again", started=True)
