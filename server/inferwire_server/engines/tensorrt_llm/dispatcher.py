"""The serving loop's side of a loaded model: takes requests, hands events to their sinks, keeps the books."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from inferwire_server.domain.engine import (
    Cancelled,
    EngineLoad,
    EngineRequest,
    EngineSink,
    Failed,
    Finished,
)
from inferwire_server.domain.errors import EngineDown, InvalidRequest, Overloaded
from inferwire_server.engines.tensorrt_llm.abilities import capabilities
from inferwire_server.engines.tensorrt_llm.checkpoint import Checkpoint
from inferwire_server.engines.tensorrt_llm.cursor import OutputCursor
from inferwire_server.engines.tensorrt_llm.engine_loop import EngineLoop, post_to
from inferwire_server.engines.tensorrt_llm.live_streams import LiveStreams
from inferwire_server.engines.tensorrt_llm.llm_arguments import caches_prefixes
from inferwire_server.engines.tensorrt_llm.loading import LoadedModel
from inferwire_server.engines.tensorrt_llm.options import Options
from inferwire_server.engines.tensorrt_llm.request_arguments import RequestArguments
from inferwire_server.engines.tensorrt_llm.runner import Parcel, Runner
from inferwire_server.engines.tensorrt_llm.statistics import StatisticsReader
from inferwire_server.engines.tensorrt_llm.stream import RunningStream


class Dispatcher:
    """Made on the serving loop once the model is loaded."""

    def __init__(
        self,
        model: LoadedModel,
        checkpoint: Checkpoint,
        options: Options,
        *,
        engine_loop: EngineLoop,
        on_changed: Callable[[], object],
        on_fatal: Callable[[str], object],
        clock: Callable[[], float],
    ) -> None:
        self._checkpoint = checkpoint
        self._options = options
        self._engine_loop = engine_loop
        self._on_changed = on_changed
        self._clock = clock
        self._serving = asyncio.get_running_loop()
        self._statistics = StatisticsReader()
        self._live = LiveStreams(options.max_batch_size)
        self._emptied = asyncio.Event()
        self._arguments = RequestArguments(checkpoint, options, model.installation)
        self.capabilities = capabilities(checkpoint, options, model.installation)
        self.runner = Runner(
            model.llm, model.installation, self._arguments, deliver=self._post, on_fatal=on_fatal, clock=clock
        )
        if options.statistics:
            self.runner.collect_statistics(self._statistics.read_iteration)
        if options.kv_cache_event_buffer and caches_prefixes(model.installation, options):
            self.runner.collect_cache_events(self._statistics.read_events)

    def __repr__(self) -> str:
        return f"<Dispatcher {self._live.running} running, {self._live.overdue} overdue>"

    @property
    def silent_since(self) -> float | None:
        """The latest step, or the beginning of the work if that is later; None when nothing runs."""
        moments = [moment for moment in (self.runner.last_step, self._live.busy_since) if moment is not None]
        return max(moments) if self._live.running and moments else None

    def room_for(self, requests: Sequence[EngineRequest]) -> bool:
        """Whether `submit` of all of them would be taken now."""
        blocks = sum(self._blocks_for(request) for request in requests)
        return self._live.has_room(len(requests), blocks, self._total_blocks())

    def submit(self, request: EngineRequest, sink: EngineSink) -> RunningStream:
        """Take a request. Raises InvalidRequest or Overloaded."""
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
        self._engine_loop.post(self.runner.begin, stream)
        return stream

    def load(self) -> EngineLoad:
        """What runs, and the engine's own statistics as far as known."""
        gauges = self._statistics.gauges()
        used, total = gauges.get("kv_blocks_used"), gauges.get("kv_blocks")
        if used is not None and not self._live:
            used = 0.0  # the engine reports per step, so its last word is from when something still ran
        batch = gauges.get("scheduled_requests")
        counters = {
            "overdue_requests": self._live.overdue,
            "engine_tasks": self.runner.tasks,
            "submitted_requests": self.runner.submitted,
            "aborted_requests": self.runner.aborts,
            "delivered_batches": self.runner.batches,
        }
        return EngineLoad(
            running=self._live.running,
            kv_blocks_used=None if used is None else int(used),
            kv_blocks_reserved=self._live.reserved_blocks,
            kv_utilization=used / total if used is not None and total else None,
            step_time_s=gauges.get("iteration_seconds", self.runner.step_s),
            batch_size=None if batch is None else int(batch),
            steps=self._statistics.totals,
            extra={**gauges, **counters},
        )

    async def drain(self, grace_s: float) -> None:
        """Wait until nothing is live; after `grace_s` ask the engine to stop the rest."""
        if not self._live:
            return
        self._emptied.clear()
        try:
            await asyncio.wait_for(self._emptied.wait(), grace_s)
        except TimeoutError:
            for stream in self._live:
                self._engine_loop.post(self.runner.abort, stream)

    def fail_all(self, message: str) -> None:
        """End every live stream with Failed(EngineDown)."""
        for stream in self._live:
            self._live.release(stream)
            if not stream.is_ended:
                self._end(stream, Failed(EngineDown(message, started=True)))
        self._emptied.set()

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
            self._on_changed()

    def _end(self, stream: RunningStream, event: Finished | Failed | Cancelled) -> None:
        stream.stop_timer()
        stream.is_ended = True
        stream.sink(event)

    def _cancel(self, stream: RunningStream) -> None:
        self._engine_loop.post(self.runner.abort, stream)
        stream.timer = self._serving.call_later(self._options.cancel_grace_s, self._end_alone, stream)

    def _end_alone(self, stream: RunningStream) -> None:
        """The engine did not confirm in time: its reader is served, its place stays taken for a while."""
        if stream.is_ended:
            return
        self._live.mark_overdue(stream)
        self._end(stream, Cancelled())
        stream.timer = self._serving.call_later(
            self._options.cancel_hold_s, self._engine_loop.post, self.runner.abandon, stream
        )
