"""One reader of one generation, as a call holds it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from inferwire_server.domain.errors import ServiceError
from inferwire_server.domain.generation import Continuation, Event, Progress, Started
from inferwire_server.scheduling.event_log import LogReader
from inferwire_server.scheduling.session import Session


class Reading:
    """`async with` it in the task that delivers; leaving it tells the session that this reader is gone.

    `interrupt` ends it from outside even while the task is blocked in a write that nobody reads.
    """

    def __init__(
        self,
        session: Session,
        reader: LogReader,
        *,
        continuation: Continuation,
        left: Callable[[Reading], None],
        progress: Callable[[Session], Progress],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.session = session
        self.taken_at = clock()
        """When something was last taken, monotonic seconds."""
        self._reader = reader
        self._continuation = continuation
        self._left = left
        self._progress = progress
        self._clock = clock
        self._task: asyncio.Task[object] | None = None
        self._interruption: ServiceError | None = None

    def __repr__(self) -> str:
        return f"<Reading of {self.session!r}>"

    @property
    def is_exhausted(self) -> bool:
        """Whether the last event has been taken."""
        return self._reader.is_exhausted

    def has_news(self) -> bool:
        """Whether something waits to be taken."""
        return self._reader.has_news()

    async def wait(self) -> None:
        """Return when there is news."""
        await self._reader.wait()

    def take(self) -> list[Event]:
        """Everything since the last call. Raises the error that ended the generation."""
        self.taken_at = self._clock()
        events = self._reader.take()
        if self._continuation and events and isinstance(events[0], Started):
            events[0] = events[0].continued(self._continuation)
        return events

    def progress(self) -> Progress:
        """A sign of life."""
        return self._progress(self.session)

    def interrupt(self, error: ServiceError) -> None:
        """Make the delivering task leave with `error`."""
        if self._interruption is None:
            error.started = self.session.log.started is not None
            self._interruption = error
            if self._task is not None:
                self._task.cancel()

    async def __aenter__(self) -> Self:
        self._task = asyncio.current_task()
        if self._interruption is not None:
            self._left(self)
            raise self._interruption
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        task, self._task = self._task, None
        self._left(self)
        if self._interruption is not None and isinstance(error, asyncio.CancelledError):
            if task is not None:
                task.uncancel()
            raise self._interruption from None
