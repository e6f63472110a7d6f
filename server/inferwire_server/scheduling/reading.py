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

_MOST_HURRIES = 3
_GATHERING_S = 0.01


class Reading:
    """`async with` it in the task that delivers; leaving it tells the session that this reader is gone.

    The task calls `next` and, after each message it has sent, `sent`. `interrupt` ends the reading from outside, even
    while the task is blocked in sending what nobody reads.
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
        """`left` is called once, when the reader is gone."""
        self.session = session
        self.continuation = continuation
        """How it joins the generation; FRESH for the reader that began it."""
        self.interruption: ServiceError | None = None
        """What ended it from outside."""
        self._reader = reader
        self._left = left
        self._progress = progress
        self._clock = clock
        self._task: asyncio.Task[object] | None = None
        self._sending_since: float | None = None
        self._has_sent = False
        self._has_cancelled_task = False
        self._is_gone = False
        self._hurries = 0
        """How many times in a row there was news without a wait."""

    def __repr__(self) -> str:
        return f"<Reading of {self.session!r}>"

    @property
    def is_exhausted(self) -> bool:
        """Whether the last event has been taken."""
        return self._reader.is_exhausted

    def is_stalled(self, now: float, stall_time_s: float) -> bool:
        """Whether one message has been on its way for that long."""
        return self._sending_since is not None and now - self._sending_since >= stall_time_s

    async def next(self) -> list[Event]:
        """The next events, once there are any. Raises the error that ended the generation.

        A reader that finds some without having to wait, time and again, is slower than the engine. It then lets a
        moment's worth of tokens come together, because a message costs many times what a token costs.
        """
        self._sending_since = None
        if not self._reader.has_news():
            self._hurries = 0
            await self._reader.news()
        elif self._hurries < _MOST_HURRIES:
            self._hurries += 1
        elif not self._reader.has_outcome:
            await asyncio.sleep(_GATHERING_S)
        self._sending_since = self._clock()
        return self._take()

    async def all(self) -> list[Event]:
        """Every event, once the generation has ended. Raises the error that ended it."""
        if not self._reader.has_outcome:
            await self._reader.end()
        events: list[Event] = []
        while not self._reader.is_exhausted:
            events += self._take()
        return events

    def sent(self) -> None:
        """A message is gone. Raises what has ended the reading meanwhile."""
        self._sending_since = self._clock()
        self._has_sent = True
        if self.interruption is not None:
            raise self.interruption

    def _take(self) -> list[Event]:
        events = self._reader.take()
        if self.continuation and events and isinstance(events[0], Started):
            events[0] = events[0].continued(self.continuation)
        return events

    def progress(self) -> Progress:
        """A sign of life, about to be sent."""
        self._sending_since = self._clock()
        return self._progress(self.session)

    def interrupt(self, error: ServiceError) -> None:
        """The reader counts as gone from now on; the delivering task leaves with `error` as soon as it can."""
        if self.interruption is None and not self._is_gone:
            error.started = self.session.log.started is not None
            self.interruption = error
            self._go()
            # gRPC cannot send a status after a first message that was given up: then the task leaves by `sent`.
            is_first_message_under_way = self._sending_since is not None and not self._has_sent
            if self._task is not None and not is_first_message_under_way:
                self._has_cancelled_task = True
                self._task.cancel()

    async def __aenter__(self) -> Self:
        self._task = asyncio.current_task()
        if self.interruption is not None:
            raise self.interruption
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        task, self._task = self._task, None
        self._go()
        if self._has_cancelled_task and task is not None:
            is_ours_alone = task.uncancel() == 0
            if is_ours_alone and isinstance(error, asyncio.CancelledError) and self.interruption is not None:
                raise self.interruption from None

    def _go(self) -> None:
        if not self._is_gone:
            self._is_gone = True
            self._left(self)
