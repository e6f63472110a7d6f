"""What the engine holds at the moment, and whether more fits. Runs on the serving loop."""

from __future__ import annotations

from collections.abc import Iterator

from inferwire_server.engines.tensorrt_llm.stream import RunningStream


class LiveStreams:
    """Requests keep their place and their cache blocks until the engine has let go of them."""

    def __init__(self, max_running: int) -> None:
        self._max_running = max_running
        self._streams: dict[RunningStream, None] = {}
        self.overdue = 0
        """Ended for their readers, not yet by the engine."""
        self.reserved_blocks = 0
        self.busy_since: float | None = None
        """When the first of the present spell of requests came."""

    def __len__(self) -> int:
        return len(self._streams)

    def __iter__(self) -> Iterator[RunningStream]:
        return iter(tuple(self._streams))

    @property
    def running(self) -> int:
        """Requests that somebody still waits for."""
        return len(self._streams) - self.overdue

    def has_room(self, requests: int, blocks: int, total_blocks: int | None) -> bool:
        """Whether so many more fit the batch and, where its size is known, the cache at their longest."""
        return len(self._streams) + requests <= self._max_running and (
            total_blocks is None or self.reserved_blocks + blocks <= total_blocks
        )

    def add(self, stream: RunningStream, now: float) -> None:
        """Take a place."""
        if self.running == 0:
            self.busy_since = now
        self._streams[stream] = None
        self.reserved_blocks += stream.blocks

    def mark_overdue(self, stream: RunningStream) -> None:
        """Its reader is served; the place stays taken."""
        stream.is_overdue = True
        self.overdue += 1

    def release(self, stream: RunningStream) -> None:
        """Give the place back; a second time changes nothing."""
        if stream not in self._streams:
            return
        del self._streams[stream]
        self.reserved_blocks -= stream.blocks
        stream.stop_timer()
        if stream.is_overdue:
            stream.is_overdue = False
            self.overdue -= 1
