"""The scripted engine behind the port: who is let in, who is told, and whether it lives."""

from __future__ import annotations

import asyncio
import struct
from array import array
from collections.abc import Callable, Sequence
from functools import partial
from hashlib import blake2b

from inferwire_server.domain.engine import (
    Capabilities,
    EngineHealth,
    EngineLoad,
    EngineRequest,
    EngineSink,
    EngineState,
    EngineStream,
    Failed,
    ResumeGuarantee,
)
from inferwire_server.domain.errors import EngineDown, InvalidRequest, Overloaded, Starting
from inferwire_server.domain.generation import Continuation, Grammar
from inferwire_server.engines.scripted.checks import check_request, total_tokens
from inferwire_server.engines.scripted.clock import LoopClock, StepClock
from inferwire_server.engines.scripted.grammar import GrammarCompiler, GrammarViolated
from inferwire_server.engines.scripted.options import ScriptedOptions
from inferwire_server.engines.scripted.plans import WORDS, Plan, Refuse
from inferwire_server.engines.scripted.runner import BatchRunner
from inferwire_server.engines.scripted.sampler import Sampler
from inferwire_server.engines.scripted.stream import ScriptedStream
from inferwire_server.engines.scripted.token_model import TokenModel
from inferwire_server.engines.scripted.vocabulary import text_of

REQUEST_FIELDS = frozenset(
    {
        "sampling.temperature",
        "sampling.top_p",
        "sampling.top_k",
        "sampling.min_p",
        "sampling.repetition_penalty",
        "sampling.presence_penalty",
        "sampling.frequency_penalty",
        "sampling.seed",
        "sampling.logit_bias",
        "stop.token_ids",
        "stop.min_output_tokens",
        "stop.ignore_end_of_sequence",
        "output.top_logprobs",
        "output.prompt_top_logprobs",
        "structured_output.json_schema",
        "structured_output.regex",
        "structured_output.ebnf",
        "structured_output.choices",
        "cache.salt",
        "cache.bypass",
    }
)
_RETRY_AFTER_S = 1.0
_COMPILE_LIMIT_S = 2.0


class ScriptedEngine:
    """Implements Engine. `plans` chooses a Plan by the prompt's text; without it every answer is endless words.

    Besides the port there are four switches for tests: `freeze`, `thaw`, `die` and `recover`.
    """

    def __init__(
        self,
        options: ScriptedOptions | None = None,
        *,
        plans: Callable[[str], Plan] | None = None,
        clock: StepClock | None = None,
    ) -> None:
        self._options = options or ScriptedOptions()
        self._plans = plans
        self._clock = clock or LoopClock()
        self._grammars = GrammarCompiler()
        self._runner = BatchRunner(self._options, self._clock, on_change=self._changed, on_death=self.die)
        self._state = EngineState.STARTING
        self._reason = "the engine has not been started"
        self._restarts = 0
        self._is_closing = False
        self._emptied = asyncio.Event()
        self._subscribers: list[Callable[[], None]] = []
        self._capabilities = _capabilities(self._options)

    def __repr__(self) -> str:
        frozen = " frozen" if self._runner.is_frozen else ""
        running = f"{len(self._runner.batch)}/{self._options.max_running} running"
        return f"<ScriptedEngine {self._state.name}{frozen}, {running}, {self._runner.kv!r}>"

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    async def start(self) -> None:
        """Become ready after `start_delay_s`."""
        if self._options.start_delay_s:
            loaded = asyncio.Event()
            self._clock.call_at(self._clock.now() + self._options.start_delay_s, loaded.set)
            await loaded.wait()
        self._become_ready()

    def room_for(self, requests: Sequence[EngineRequest]) -> bool:
        if self._state is not EngineState.READY or self._is_closing:
            return False
        if len(self._runner.batch) + len(requests) > self._options.max_running:
            return False
        wishes = [(_known_tokens(request), total_tokens(request), self._namespace(request)) for request in requests]
        return self._runner.kv.fits(wishes)

    def submit(self, request: EngineRequest, sink: EngineSink) -> EngineStream:
        self._require_ready()
        if request.id in self._runner.batch:
            raise InvalidRequest("request_id", "a request with this id is running")
        check_request(request, self._options)
        if len(self._runner.batch) >= self._options.max_running:
            raise Overloaded("every slot of the engine is in use")
        plan = WORDS if self._plans is None else self._plans(text_of(request.prompt_token_ids))
        if isinstance(plan.mishap, Refuse):
            raise plan.mishap.error()
        sampler = self._sampler(request, plan)
        allocation = self._runner.kv.take(_known_tokens(request), total_tokens(request), self._namespace(request))
        if allocation is None:
            raise Overloaded("the KV cache has no room for the request")
        stream = ScriptedStream(request, sink, host=self._runner, plan=plan, sampler=sampler, allocation=allocation)
        self._runner.add(stream)
        return stream

    def continuation_of(self, request: EngineRequest) -> Continuation:
        return Continuation.PREFILLED

    def subscribe(self, changed: Callable[[], None]) -> None:
        self._subscribers.append(changed)

    def health(self) -> EngineHealth:
        is_idle = self._state is EngineState.READY and not self._runner.is_frozen and not self._runner.batch
        return EngineHealth(
            state=self._state,
            last_progress=self._clock.now() if is_idle else self._runner.last_progress,
            reason=self._reason,
            restarts=self._restarts,
        )

    def load(self) -> EngineLoad:
        return self._runner.load()

    async def check(self, grammar: Grammar) -> None:
        if self._grammars.knows(grammar):
            return
        try:
            async with asyncio.timeout(_COMPILE_LIMIT_S):
                matcher = await asyncio.to_thread(self._grammars.compile, grammar)
        except TimeoutError:
            field = f"structured_output.{grammar.kind.value}"
            raise InvalidRequest(field, f"takes more than {_COMPILE_LIMIT_S:g} s to compile") from None
        self._grammars.keep(grammar, matcher)

    async def shutdown(self, grace_s: float) -> None:
        self._is_closing = True
        if self._runner.batch:
            self._emptied.clear()
            timer = self._clock.call_at(self._clock.now() + grace_s, self._emptied.set)
            await self._emptied.wait()
            timer.cancel()
        if self._state is not EngineState.DEAD or self._runner.batch:
            self._state = EngineState.DEAD
            self._reason = "the engine was shut down"
            self._fail(self._runner.clear())
            self._changed()

    def freeze(self) -> None:
        """Stop stepping without a word: health stays READY, its `last_progress` grows old."""
        if self._state is EngineState.READY:
            self._runner.freeze()

    def thaw(self) -> None:
        """Go on where `freeze` stopped."""
        self._runner.thaw()

    def die(self, reason: str = "the engine died") -> None:
        """Lose every stream and the prefix cache; stay dead until `recover`, or for `recover_after_s`."""
        if self._state is EngineState.DEAD:
            return
        self._state = EngineState.DEAD
        self._reason = reason
        self._clock.call_at(self._clock.now(), partial(self._fail, self._runner.clear()))
        if self._options.recover_after_s is not None:
            self._clock.call_at(self._clock.now() + self._options.recover_after_s, self.recover)
        self._changed()

    def recover(self) -> None:
        """Start again after a death, empty, and be ready after `start_delay_s`."""
        if self._state is EngineState.DEAD and not self._is_closing:
            self._state = EngineState.STARTING
            self._reason = "the engine is starting again"
            self._restarts += 1
            self._clock.call_at(self._clock.now() + self._options.start_delay_s, self._become_ready)
            self._changed()

    def _become_ready(self) -> None:
        if self._state is EngineState.STARTING and not self._is_closing:
            self._state = EngineState.READY
            self._reason = ""
            self._changed()

    def _require_ready(self) -> None:
        if self._state is EngineState.STARTING and not self._is_closing:
            raise Starting(self._reason, retry_after_s=_RETRY_AFTER_S)
        if self._state is EngineState.DEAD:
            raise EngineDown(self._reason, retry_after_s=_RETRY_AFTER_S)
        if self._is_closing:
            raise EngineDown("the engine is shutting down", retry_after_s=_RETRY_AFTER_S)

    def _sampler(self, request: EngineRequest, plan: Plan) -> Sampler:
        key = blake2b(array("I", request.prompt_token_ids).tobytes(), digest_size=32).digest()
        sampling = request.sampling
        end_key = key if sampling.is_greedy else key + struct.pack("<II", sampling.seed, request.output_index)
        model = TokenModel(
            key,
            reply=plan.reply_tokens(request.prompt_token_ids),
            mean_output_tokens=plan.mean_output_tokens,
            end_key=end_key,
        )
        grammar = None if request.grammar is None else self._grammars.start(request.grammar)
        sampler = Sampler(request, model, grammar)
        try:
            sampler.accept(request.resumed_token_ids)
        except GrammarViolated:
            raise InvalidRequest("resume.outputs", "the tokens do not obey the grammar") from None
        return sampler

    def _namespace(self, request: EngineRequest) -> str | None:
        return request.cache_namespace if self._options.prefix_caching and not request.bypass_cache else None

    def _fail(self, sinks: Sequence[EngineSink]) -> None:
        for sink in sinks:
            sink(Failed(EngineDown(self._reason, started=True)))

    def _changed(self) -> None:
        if not self._runner.batch:
            self._emptied.set()
        for changed in self._subscribers:
            changed()


def _known_tokens(request: EngineRequest) -> Sequence[int]:
    if not request.resumed_token_ids:
        return request.prompt_token_ids
    return (*request.prompt_token_ids, *request.resumed_token_ids)


def _capabilities(options: ScriptedOptions) -> Capabilities:
    return Capabilities(
        request_fields=REQUEST_FIELDS,
        max_running=options.max_running,
        max_context_tokens=options.max_context_tokens,
        kv_blocks=options.kv_blocks,
        kv_block_tokens=options.block_tokens,
        max_top_logprobs=options.max_top_logprobs,
        reports_cached_tokens=True,
        batch_invariant=True,
        resume_guarantee=ResumeGuarantee.EXACT,
        has_cache_salt=True,
        prefix_caching=options.prefix_caching,
        prefill_tokens_per_step=options.prefill_chunk_tokens,
    )
