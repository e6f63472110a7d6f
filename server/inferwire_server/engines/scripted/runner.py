"""Runs the batch step by step: one timer a step, and every stream served in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from inferwire_server.domain.engine import Cancelled, EngineLoad, EngineSink, Failed, Finished, StepTotals
from inferwire_server.domain.errors import InvalidRequest
from inferwire_server.engines.scripted.batch import Batch
from inferwire_server.engines.scripted.clock import StepClock, Timer
from inferwire_server.engines.scripted.grammar import GrammarViolated
from inferwire_server.engines.scripted.kv_cache import KvCache
from inferwire_server.engines.scripted.options import ScriptedOptions
from inferwire_server.engines.scripted.plans import Die, Fail, Freeze, Mishap
from inferwire_server.engines.scripted.stream import ScriptedStream

_SILENT_STEP_S = 0.001
"""A step in which every stream is kept silent by its plan takes at least this long."""


class BatchRunner:
    """Implements StreamHost. `on_change` is called when room may have grown, `on_death` when a plan asks for one."""

    def __init__(
        self,
        options: ScriptedOptions,
        clock: StepClock,
        *,
        on_change: Callable[[], None],
        on_death: Callable[[str], None],
    ) -> None:
        self.batch = Batch(options)
        self.kv = KvCache(options.kv_blocks, options.block_tokens)
        self.is_frozen = False
        self.last_progress: float | None = None
        self._options = options
        self._clock = clock
        self._on_change = on_change
        self._on_death = on_death
        self._timer: Timer | None = None
        self._due = 0.0
        self._is_stepping = False
        self._has_released = False
        self._step_time_s: float | None = None
        self._batch_size = 0
        self._totals = StepTotals()
        self._prefilled_tokens = 0

    def add(self, stream: ScriptedStream) -> None:
        """Take a stream into the next step."""
        if not self.batch:
            self.last_progress = self._due = self._clock.now()
        self.batch.add(stream)
        self._wake()

    def finish(self, stream: ScriptedStream, terminal: Finished | Failed | Cancelled) -> None:
        """Give back what the stream held, then tell its sink, unless it has ended."""
        if not stream.is_live:
            return
        self._release(stream)
        stream.sink(terminal)
        if not self._is_stepping:
            self._tell_of_release()

    def meet(self, stream: ScriptedStream, mishap: Mishap) -> None:
        """Let a planned mishap happen."""
        match mishap:
            case Fail():
                self.finish(stream, Failed(mishap.error()))
            case Die():
                self._on_death(mishap.reason)
            case Freeze():
                self.freeze()
                if mishap.seconds is not None:
                    self._clock.call_at(self._clock.now() + mishap.seconds, self.thaw)

    def request_cancel(self, stream: ScriptedStream) -> None:
        """End the stream soon, unless it ends before. Works on a frozen engine too."""
        if stream.is_live and not stream.is_cancelling:
            stream.is_cancelling = True
            self._clock.call_at(self._clock.now(), partial(self._cancel, stream))

    def freeze(self) -> None:
        """Stop stepping, and say nothing about it."""
        self.is_frozen = True
        if not self.batch:
            self.last_progress = self._clock.now()
        self._stop_timer()

    def thaw(self) -> None:
        """Step again."""
        if self.is_frozen:
            self.is_frozen = False
            self._due = self._clock.now()
            self._wake()

    def clear(self) -> list[EngineSink]:
        """Forget every stream and every block; return the sinks that still wait for a terminal."""
        streams = self.batch.streams
        for stream in streams:
            self._release(stream)
        self.kv = KvCache(self._options.kv_blocks, self._options.block_tokens)
        self.is_frozen = False
        self._stop_timer()
        return [stream.sink for stream in streams]

    def load(self) -> EngineLoad:
        """A snapshot."""
        used = self.kv.used([(stream.allocation, stream.computed_tokens) for stream in self.batch.streams])
        return EngineLoad(
            running=len(self.batch),
            kv_blocks_used=used,
            kv_blocks_reserved=self.kv.held,
            kv_utilization=used / self.kv.blocks,
            step_time_s=self._step_time_s,
            batch_size=self._batch_size if self.batch else 0,
            steps=self._totals,
            extra={"prefilled_tokens": float(self._prefilled_tokens)},
        )

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wake(self) -> None:
        if self._timer is None and not self._is_stepping and not self.is_frozen and self.batch:
            # Not at once: requests that arrive together share their first step.
            self._timer = self._clock.call_at(self._clock.now(), self._begin_step)

    def _begin_step(self) -> None:
        self._timer = None
        if self.is_frozen or not self.batch:
            return
        now = self._clock.now()
        prefilling, decoding, duration = self.batch.compose()
        if not prefilling and duration < _SILENT_STEP_S and all(stream.ready_at > now for stream in decoding):
            duration = _SILENT_STEP_S
        # A late loop does not slow the engine down, as it would not slow a GPU; but a pause is not made up for.
        self._due = max(self._due, now - duration) + duration
        self._step_time_s = duration
        self._batch_size = len(prefilling) + len(decoding)
        self._timer = self._clock.call_at(self._due, partial(self._finish_step, prefilling, decoding))

    def _finish_step(self, prefilling: Sequence[ScriptedStream], decoding: Sequence[ScriptedStream]) -> None:
        self._timer = None
        now = self.last_progress = self._clock.now()
        self._totals = self._totals.plus(self._step_time_s or 0.0, len(prefilling) + len(decoding))
        self._is_stepping = True
        try:
            for stream in decoding:
                if stream.position < stream.run_end:
                    stream.send_prepared()
                else:
                    self._advance(stream, now)
            for stream in prefilling:
                self._finish_chunk(stream, now)
        finally:
            self._is_stepping = False
            self._tell_of_release()
            if self._timer is None:
                self._begin_step()

    def _advance(self, stream: ScriptedStream, now: float) -> None:
        if not stream.is_live:
            return
        try:
            stream.advance(now)
        except GrammarViolated as violation:
            error = InvalidRequest("structured_output", f"cannot be followed any further: {violation}")
            error.started = True
            self.finish(stream, Failed(error))

    def _finish_chunk(self, stream: ScriptedStream, now: float) -> None:
        if not stream.is_live:
            return
        self._prefilled_tokens += stream.chunk
        stream.count_chunk()
        self.kv.computed(stream.allocation, stream.computed_token_ids())
        if stream.prefill_left:
            stream.report_prefill()
            return
        self.batch.start_decoding(stream)
        stream.start_output(now)
        self._advance(stream, now)

    def _cancel(self, stream: ScriptedStream) -> None:
        self.finish(stream, Cancelled(stream.cached_tokens))

    def _release(self, stream: ScriptedStream) -> None:
        stream.is_live = False
        self.batch.remove(stream)
        self.kv.computed(stream.allocation, stream.computed_token_ids())
        self.kv.release(stream.allocation)
        self._has_released = True

    def _tell_of_release(self) -> None:
        if self._has_released:
            self._has_released = False
            self._on_change()
