"""What happens on the engine's own loop: submit, iterate, abort. Events leave it in one batch per wake-up."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable

import structlog

from inferwire_server.domain.engine import Cancelled, EngineEvent, Failed
from inferwire_server.domain.errors import EngineDown, InvalidRequest
from inferwire_server.engines.tensorrt_llm.installation import Installation
from inferwire_server.engines.tensorrt_llm.request_arguments import RequestArguments
from inferwire_server.engines.tensorrt_llm.stream import RunningStream
from inferwire_server.engines.tensorrt_llm.surface import Llm, RequestOutput

Parcel = tuple[RunningStream, EngineEvent | None]
"""An event for a stream; None says that the engine holds nothing of it any more."""

_STATISTICS_WAIT_S = 60.0
_OUR_MISTAKES = (TypeError, IndexError, KeyError, AttributeError, AssertionError)

_log = structlog.get_logger("inferwire.engine.tensorrt_llm")


class Runner:
    """All methods run on the engine's loop; the plain attributes may be read from anywhere."""

    def __init__(
        self,
        llm: Llm,
        installation: Installation,
        arguments: RequestArguments,
        *,
        deliver: Callable[[list[Parcel]], object],
        on_fatal: Callable[[str], object],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._llm = llm
        self._request_error = installation.request_error
        self._arguments = arguments
        self._deliver = deliver
        self._on_fatal = on_fatal
        self._clock = clock
        self._outbox: list[Parcel] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._sources: list[tuple[Callable[[], AsyncIterator[object]], Callable[[object], None]]] = []
        self._source_tasks: list[asyncio.Task[None]] = []
        self._submitted = asyncio.Event()
        self._flushed_at: float | None = None
        self.last_step: float | None = None
        self.step_s: float | None = None
        """Time between the latest two batches of one busy spell."""
        self.unanswered = 0
        self.unanswered_since: float | None = None
        self.batches = 0
        self.submitted = 0
        self.aborts = 0
        self.tasks = 0
        """Requests that the engine has not let go of."""

    def collect_statistics(self, absorb: Callable[[object], None]) -> None:
        """Read iteration statistics from the first request on; there can be one reader only."""
        self._sources.append((lambda: self._llm.get_stats_async(timeout=_STATISTICS_WAIT_S), absorb))

    def collect_cache_events(self, absorb: Callable[[object], None]) -> None:
        """Read cache events from the first request on; there can be one reader only."""
        self._sources.append((lambda: self._llm.get_kv_cache_events_async(timeout=_STATISTICS_WAIT_S), absorb))

    def begin(self, stream: RunningStream) -> None:
        """Give a request to the engine; never raises."""
        if stream.is_cancelled or stream.is_ended:
            self._send(stream, None)
            self._send(stream, Cancelled())
            return
        stream.task = asyncio.get_running_loop().create_task(self._run(stream))
        self._tasks.add(stream.task)
        self.tasks = len(self._tasks)

    def abort(self, stream: RunningStream) -> None:
        """Ask the engine to stop a request: at most once for each, and whatever it answers."""
        if stream.output is None or stream.is_abort_sent:
            return
        stream.is_abort_sent = True
        self.aborts += 1
        try:
            stream.output.abort()
        except Exception as error:  # noqa: BLE001 - its executor may be gone, and then nothing is left to stop
            _log.warning("abort failed", request_id=stream.request.id, error=repr(error))

    def abandon(self, stream: RunningStream) -> None:
        """Wait no longer for the engine's last word on a request."""
        if stream.task is not None:
            stream.task.cancel()

    async def _run(self, stream: RunningStream) -> None:
        terminal: EngineEvent | None = None
        try:
            output = self._submit(stream)
            terminal = output if isinstance(output, Failed) else await self._follow(stream, output)
        except Exception as error:  # noqa: BLE001 - whatever happens, the stream must end
            terminal = Failed(error)
        finally:
            stream.output = None
            self._tasks.discard(asyncio.current_task())
            self.tasks = len(self._tasks)
            self._send(stream, None)
            if terminal is not None:
                self._send(stream, terminal)

    def _submit(self, stream: RunningStream) -> RequestOutput | Failed:
        try:
            stream.output = self._llm.generate_async(**self._arguments.build(stream.request))
        except self._request_error as error:
            return self._refused(stream, error)
        except ValueError as error:
            return self._refused(stream, error)
        except _OUR_MISTAKES as error:
            return Failed(error)
        except Exception as error:  # noqa: BLE001 - anything else is the engine's own end
            return self._fatal(error)
        self._count_submission()
        return stream.output

    async def _follow(self, stream: RunningStream, output: RequestOutput) -> EngineEvent:
        cursor = stream.cursor
        fault: Failed | None = None
        try:
            async for step in output:
                self._hear()
                if fault is not None:
                    continue
                try:
                    tokens = cursor.advance(step.outputs[0])
                except Exception as error:  # noqa: BLE001 - one strange output must not pass for the engine's end
                    fault = Failed(error)
                    self._send(stream, fault)
                    self.abort(stream)
                    continue
                if tokens is not None:
                    self._send(stream, tokens)
        except self._request_error as error:
            self._hear()
            return self._refused(stream, error)
        except Exception as error:  # noqa: BLE001 - anything but a request's error is the engine's own end
            return self._fatal(error)
        return fault or self._outcome(stream, output)

    def _outcome(self, stream: RunningStream, output: RequestOutput) -> EngineEvent:
        completion = output.outputs[0]
        finished = stream.cursor.finish(completion, output.cached_tokens)
        if finished is not None:
            return finished
        if completion.finish_reason != "cancelled":
            return Failed(RuntimeError(f"the engine ended a request with the reason {completion.finish_reason!r}"))
        return Cancelled() if stream.is_abort_sent else Failed(EngineDown("the engine is shutting down", started=True))

    def _refused(self, stream: RunningStream, error: Exception) -> Failed:
        _log.warning("request refused by the engine", request_id=stream.request.id, error=type(error).__name__)
        if stream.cursor.has_tokens:
            return Failed(error)
        if stream.request.grammar is not None:
            return Failed(InvalidRequest("structured_output", "the engine cannot compile this grammar"))
        if isinstance(error, ValueError):
            return Failed(InvalidRequest("prompt", "the prompt and options do not fit the loaded model"))
        return Failed(error)

    def _fatal(self, error: Exception) -> Failed:
        _log.error("engine failed", exc_info=error)
        self._on_fatal(f"it failed with {type(error).__name__}")
        return Failed(EngineDown("the engine has failed", started=True))

    def _count_submission(self) -> None:
        self.submitted += 1
        if not self.unanswered:
            self.unanswered_since = self._clock()
        self.unanswered += 1
        self._submitted.set()
        if self._sources and not self._source_tasks:
            loop = asyncio.get_running_loop()
            self._source_tasks = [loop.create_task(self._collect(*source)) for source in self._sources]

    def _hear(self) -> None:
        self.unanswered = 0
        self.last_step = self._clock()

    async def _collect(self, source: Callable[[], AsyncIterator[object]], absorb: Callable[[object], None]) -> None:
        while True:
            self._submitted.clear()
            try:
                async for item in source():
                    absorb(item)
            except Exception as error:  # noqa: BLE001 - gauges are not worth a stream
                _log.warning("no statistics", error=repr(error))
            # Once it has run dry it stays so until the next request is submitted.
            await self._submitted.wait()

    def _send(self, stream: RunningStream, event: EngineEvent | None) -> None:
        if not self._outbox:
            asyncio.get_running_loop().call_soon(self._flush)
        self._outbox.append((stream, event))

    def _flush(self) -> None:
        batch, self._outbox = self._outbox, []
        now = self._clock()
        if self._flushed_at is not None:
            self.step_s = now - self._flushed_at
        self._flushed_at = now if self._tasks else None
        self.batches += 1
        self._deliver(batch)
