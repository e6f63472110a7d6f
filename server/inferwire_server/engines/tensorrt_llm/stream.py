"""A request that the engine has taken, as both of its loops see it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from inferwire_server.domain.engine import EngineRequest, EngineSink
from inferwire_server.engines.tensorrt_llm.cursor import OutputCursor
from inferwire_server.engines.tensorrt_llm.surface import RequestOutput


class RunningStream:
    """One live request. The first group belongs to the serving loop, the second to the engine's."""

    __slots__ = (
        "_on_cancel",
        "blocks",
        "cursor",
        "is_abort_sent",
        "is_cancelled",
        "is_ended",
        "is_overdue",
        "output",
        "request",
        "sink",
        "task",
        "timer",
    )

    def __init__(
        self,
        request: EngineRequest,
        sink: EngineSink,
        *,
        cursor: OutputCursor,
        blocks: int,
        on_cancel: Callable[[RunningStream], None],
    ) -> None:
        self.request = request
        self.sink = sink
        self.blocks = blocks
        """KV cache blocks reserved for the longest output it may have."""
        self.is_cancelled = False
        self.is_ended = False
        """Whether the sink has had its terminal event."""
        self.is_overdue = False
        """Whether it ended without the engine's word, which is still awaited."""
        self.timer: asyncio.TimerHandle | None = None
        self._on_cancel = on_cancel

        self.cursor = cursor
        self.output: RequestOutput | None = None
        self.task: asyncio.Task[None] | None = None
        self.is_abort_sent = False

    def __repr__(self) -> str:
        state = "overdue" if self.is_overdue else "ended" if self.is_ended else "running"
        return f"<RunningStream {self.request.id} {state}>"

    def cancel(self) -> None:
        """Ask for an end. Idempotent; a terminal event follows within the engine's cancel grace."""
        if not self.is_cancelled and not self.is_ended:
            self.is_cancelled = True
            self._on_cancel(self)

    def stop_timer(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
