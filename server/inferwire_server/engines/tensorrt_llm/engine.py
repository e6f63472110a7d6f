"""The adapter: the engine port over TensorRT-LLM's LLM API. Everything here runs on the serving loop."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Sequence

import structlog

from inferwire_server.domain.engine import (
    Cancelled,
    Capabilities,
    EngineHealth,
    EngineLoad,
    EngineRequest,
    EngineSink,
    EngineState,
    Failed,
    Finished,
)
from inferwire_server.domain.errors import EngineDown, InvalidRequest, Overloaded, Starting
from inferwire_server.domain.generation import Continuation, Grammar
from inferwire_server.engines.tensorrt_llm.abilities import capabilities
from inferwire_server.engines.tensorrt_llm.checkpoint import Checkpoint
from inferwire_server.engines.tensorrt_llm.cursor import OutputCursor
from inferwire_server.engines.tensorrt_llm.engine_loop import EngineLoop, post_to
from inferwire_server.engines.tensorrt_llm.gpu import GpuReader, GpuSampler
from inferwire_server.engines.tensorrt_llm.grammars import KINDS, require_compilable
from inferwire_server.engines.tensorrt_llm.installation import require_installed
from inferwire_server.engines.tensorrt_llm.launcher import require_leader
from inferwire_server.engines.tensorrt_llm.live_streams import LiveStreams
from inferwire_server.engines.tensorrt_llm.llm_arguments import caches_prefixes
from inferwire_server.engines.tensorrt_llm.loading import LoadedModel, load, unload
from inferwire_server.engines.tensorrt_llm.options import Options
from inferwire_server.engines.tensorrt_llm.request_arguments import RequestArguments
from inferwire_server.engines.tensorrt_llm.runner import Parcel, Runner
from inferwire_server.engines.tensorrt_llm.statistics import StatisticsReader
from inferwire_server.engines.tensorrt_llm.stream import RunningStream
from inferwire_server.engines.tensorrt_llm.surface import Llm
from inferwire_server.engines.tensorrt_llm.vital_signs import why_dead
from inferwire_server.engines.tensorrt_llm.watchdog import Bounds, Observation, Watchdog

_LINGER_S = 2.0
"""After the teardown of a dead or hung engine, time for the process to end in its own way."""

_log = structlog.get_logger("inferwire.engine.tensorrt_llm")


class TensorRTEngine:
    """One model on TensorRT-LLM. `exit_process` ends the process when the engine is dead and blocks its end."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        options: Options | None = None,
        *,
        exit_process: Callable[[int], object] = os._exit,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._checkpoint = checkpoint
        self._options = options or Options()
        self._clock = clock
        self._engine_loop = EngineLoop(name="inferwire-tensorrt-llm", clock=clock)
        self._watchdog = Watchdog(
            observe=self._observe,
            on_death=self._post_death,
            bounds=Bounds(
                silence_s=self._options.silence_s,
                loop_stuck_s=self._options.loop_stuck_s,
                exit_s=self._options.exit_s,
            ),
            exit_process=exit_process,
        )
        self._statistics = StatisticsReader()
        self._gpus = GpuSampler(GpuReader())
        self._live = LiveStreams(self._options.max_batch_size)
        self._subscribers: list[Callable[[], None]] = []
        self._serving: asyncio.AbstractEventLoop | None = None
        self._llm: Llm | None = None
        self._runner: Runner | None = None
        self._arguments: RequestArguments | None = None
        self._capabilities: Capabilities | None = None
        self._death = ""
        self._is_closing = False
        self._is_closed = False
        self._emptied = asyncio.Event()
        self._shutdown: asyncio.Future[None] | None = None

    def __repr__(self) -> str:
        state = self.health().state.name
        return f"<TensorRTEngine {state}, {self._live.running} running, {self._live.overdue} overdue>"

    @property
    def capabilities(self) -> Capabilities:
        """Valid after `start()`."""
        if self._capabilities is None:
            raise Starting("the model is not loaded yet")
        return self._capabilities

    async def start(self) -> None:
        """Import the package and load the model. Raises EngineDown with a reason that says what to do."""
        require_leader(os.environ)
        require_installed()
        self._serving = asyncio.get_running_loop()
        try:
            model = await load(self._engine_loop, self._checkpoint, self._options)
        except TimeoutError:
            self._watchdog.exit_within(self._options.exit_s)
            raise EngineDown(
                f"engine unavailable: the model was not loaded within {self._options.start_timeout_s:g} s; "
                "see TensorRT-LLM's own log, or raise start_timeout_s"
            ) from None
        except EngineDown:
            await asyncio.to_thread(self._engine_loop.stop, _LINGER_S)
            raise
        self._assemble(model)
        self._watchdog.start()
        self._gpus.start()
        self._notify()

    def room_for(self, requests: Sequence[EngineRequest]) -> bool:
        """Whether `submit` of all of them would be taken now."""
        if self._capabilities is None or self._death or self._is_closing:
            return False
        blocks = sum(self._blocks_for(request) for request in requests)
        return self._live.has_room(len(requests), blocks, self._total_blocks())

    def submit(self, request: EngineRequest, sink: EngineSink) -> RunningStream:
        """Take a request. Raises InvalidRequest, Overloaded, Starting or EngineDown."""
        if self._death or self._is_closing:
            raise EngineDown(self._death or "the engine is shutting down")
        if self._arguments is None or self._runner is None:
            raise Starting("the model is not loaded yet")
        self._arguments.check(request)
        blocks, total = self._blocks_for(request), self._total_blocks()
        if total is not None and blocks > total:
            raise InvalidRequest(
                "max_output_tokens", f"needs {blocks} cache blocks of {total}", limit=total, actual=blocks
            )
        if not self._live.has_room(1, blocks, total):
            raise Overloaded("the batch is full")
        stream = RunningStream(request, sink, cursor=self._cursor(request), blocks=blocks, on_cancel=self._cancel)
        self._live.add(stream, self._clock())
        self._engine_loop.post(self._runner.begin, stream)
        return stream

    def continuation_of(self, request: EngineRequest) -> Continuation:
        """PREFILLED: given tokens are appended to the prompt."""
        return Continuation.PREFILLED if request.resumed_token_ids else Continuation.FRESH

    def subscribe(self, changed: Callable[[], None]) -> None:
        """Call `changed` on the serving loop whenever room may have grown or health changed."""
        self._subscribers.append(changed)

    def health(self) -> EngineHealth:
        """State, and the time of the last step or, when idle, of the loop's last beat."""
        if self._death or self._is_closed:
            reason = self._death or "shut down"
            return EngineHealth(state=EngineState.DEAD, last_progress=self._last_step, reason=reason)
        if self._runner is None:
            return EngineHealth(state=EngineState.STARTING, reason="loading the model")
        since = self._silent_since
        if since is None:
            return EngineHealth(state=EngineState.READY, last_progress=self._last_sign)
        silence = self._clock() - since
        if silence > self._options.silence_s / 2:
            reason = f"no step for {silence:.0f} s"
            return EngineHealth(state=EngineState.DEGRADED, last_progress=self._last_step, reason=reason)
        return EngineHealth(state=EngineState.READY, last_progress=self._last_step)

    def load(self) -> EngineLoad:
        """What runs, the engine's own statistics as far as known, and the GPUs'."""
        gauges = self._statistics.gauges()
        used, total = gauges.get("kv_blocks_used"), gauges.get("kv_blocks")
        if used is not None and not self._live:
            used = 0.0  # the engine reports per step, so its last word is from when something still ran
        batch = gauges.get("scheduled_requests")
        runner = self._runner
        counters = {
            "overdue_requests": self._live.overdue,
            "engine_tasks": runner.tasks if runner else 0,
            "submitted_requests": runner.submitted if runner else 0,
            "aborted_requests": runner.aborts if runner else 0,
            "delivered_batches": runner.batches if runner else 0,
        }
        return EngineLoad(
            running=self._live.running,
            kv_blocks_used=None if used is None else int(used),
            kv_blocks_reserved=self._live.reserved_blocks,
            kv_utilization=used / total if used is not None and total else None,
            step_time_s=gauges.get("iteration_seconds", runner.step_s if runner else None),
            batch_size=None if batch is None else int(batch),
            extra={**gauges, **self._gpus.latest, **counters},
        )

    async def check(self, grammar: Grammar) -> None:
        """Raise InvalidRequest for a grammar that cannot be compiled, or that the chosen backend does not read."""
        if grammar.kind not in KINDS[self._options.guided_decoding]:
            raise InvalidRequest(f"structured_output.{grammar.kind.value}", "not supported by this model’s engine")
        await asyncio.to_thread(require_compilable, grammar)

    async def shutdown(self, grace_s: float) -> None:
        """End live streams with Failed(EngineDown) after at most `grace_s` and release everything. Idempotent."""
        if self._shutdown is None:
            self._is_closing = True
            self._shutdown = asyncio.ensure_future(self._close(grace_s))
        await asyncio.shield(self._shutdown)

    def _assemble(self, model: LoadedModel) -> None:
        checkpoint, options, installation = self._checkpoint, self._options, model.installation
        self._arguments = RequestArguments(checkpoint, options, installation)
        runner = Runner(
            model.llm,
            installation,
            self._arguments,
            deliver=self._post,
            on_fatal=self._on_fatal,
            clock=self._clock,
        )
        if options.statistics:
            runner.collect_statistics(self._statistics.read_iteration)
        if options.kv_cache_event_buffer and caches_prefixes(installation, options):
            runner.collect_cache_events(self._statistics.read_events)
        self._capabilities = capabilities(checkpoint, options, installation)
        self._llm, self._runner = model.llm, runner

    def _cursor(self, request: EngineRequest) -> OutputCursor:
        return OutputCursor(
            end_token_ids=frozenset() if request.ignore_end_of_sequence else self._checkpoint.end_token_ids,
            stop_token_ids=request.stop_token_ids,
            vocabulary_size=self._checkpoint.vocabulary_size,
            top_logprobs=request.top_logprobs,
        )

    def _blocks_for(self, request: EngineRequest) -> int:
        tokens = len(request.prompt_token_ids) + len(request.resumed_token_ids) + request.max_output_tokens
        return -(-tokens // self._options.kv_cache_block_tokens)

    def _total_blocks(self) -> int | None:
        measured = self._statistics.value("kv_blocks")
        return int(measured) if measured else self.capabilities.kv_blocks

    def _post(self, batch: list[Parcel]) -> None:
        """On the engine's loop: one wake-up of the serving loop for everything a step brought."""
        if self._serving is not None:
            post_to(self._serving, self._receive, batch)

    def _receive(self, batch: list[Parcel]) -> None:
        has_released = False
        for stream, event in batch:
            if event is None:
                self._live.release(stream)
                has_released = True
            elif not stream.is_ended:
                if isinstance(event, Finished | Failed | Cancelled):
                    self._end(stream, event)
                else:
                    stream.sink(event)
        if has_released:
            if not self._live:
                self._emptied.set()
            self._notify()

    def _end(self, stream: RunningStream, event: Finished | Failed | Cancelled) -> None:
        stream.stop_timer()
        stream.is_ended = True
        stream.sink(event)

    def _notify(self) -> None:
        for changed in self._subscribers:
            changed()

    def _cancel(self, stream: RunningStream) -> None:
        if self._serving is not None and self._runner is not None:
            self._engine_loop.post(self._runner.abort, stream)
            stream.timer = self._serving.call_later(self._options.cancel_grace_s, self._end_alone, stream)

    def _end_alone(self, stream: RunningStream) -> None:
        """The engine did not confirm in time: its reader is served, its place stays taken for a while."""
        if stream.is_ended or self._serving is None or self._runner is None:
            return
        self._live.mark_overdue(stream)
        self._end(stream, Cancelled())
        stream.timer = self._serving.call_later(
            self._options.cancel_hold_s, self._engine_loop.post, self._runner.abandon, stream
        )

    @property
    def _last_step(self) -> float | None:
        return self._runner.last_step if self._runner else None

    @property
    def _last_sign(self) -> float | None:
        signs = [sign for sign in (self._last_step, self._engine_loop.last_beat) if sign is not None]
        return max(signs, default=None)

    @property
    def _silent_since(self) -> float | None:
        """The latest step, or the beginning of the work if that is later; None when nothing runs."""
        moments = [moment for moment in (self._last_step, self._live.busy_since) if moment is not None]
        return max(moments) if self._live.running and moments else None

    def _observe(self) -> Observation:
        """On the watchdog's thread, so it only reads."""
        runner = self._runner
        return Observation(
            now=self._clock(),
            why_dead="" if self._is_closing else why_dead(self._llm),
            last_beat=self._engine_loop.last_beat,
            running_since=self._silent_since,
            unanswered=runner.unanswered if runner else 0,
            unanswered_since=runner.unanswered_since if runner else None,
        )

    def _on_fatal(self, reason: str) -> None:
        """On the engine's loop. While it is being unloaded, its refusals are no death."""
        if not self._is_closing:
            self._watchdog.declare_dead(reason)

    def _post_death(self, reason: str) -> None:
        if self._serving is not None:
            post_to(self._serving, self._die, reason)

    def _die(self, reason: str) -> None:
        self._death = f"the engine is dead: {reason}"
        self._fail_all("the engine has died")
        self._notify()

    def _fail_all(self, message: str) -> None:
        for stream in self._live:
            self._live.release(stream)
            if not stream.is_ended:
                self._end(stream, Failed(EngineDown(message, started=True)))
        self._emptied.set()

    async def _close(self, grace_s: float) -> None:
        is_clean = await self._unload(self._llm, self._runner, grace_s) if self._llm and self._runner else True
        is_clean &= await asyncio.to_thread(self._engine_loop.stop, _LINGER_S)
        self._watchdog.stop()
        self._gpus.stop()
        self._is_closed = True
        if not is_clean:
            _log.critical("engine not unloaded", exit_within_s=_LINGER_S)
            self._watchdog.exit_within(_LINGER_S)

    async def _unload(self, llm: Llm, runner: Runner, grace_s: float) -> bool:
        if self._live and not self._death:
            self._emptied.clear()
            try:
                await asyncio.wait_for(self._emptied.wait(), grace_s)
            except TimeoutError:
                for stream in self._live:
                    self._engine_loop.post(runner.abort, stream)
        self._fail_all("the engine is shutting down")
        # A dead engine's own teardown waits for workers that are gone: it is left alone and the process ends instead.
        return not self._death and await unload(llm, self._options.teardown_s)
