"""A second attempt beside a first one that is slow, until one of them has a token."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

import grpc

from inferwire.attempts import Attempt
from inferwire.v1 import generation_pb2

_Event = generation_pb2.StreamGenerateResponse
_DECIDING = frozenset({"delta", "finished", "completed"})


class Runner:
    """An attempt in a race."""

    def __init__(self, attempt: Attempt, call: Any, read: Callable[[], Any] | None = None) -> None:
        self.attempt = attempt
        self.call = call
        # Its iterator reads to the end; `read` would drop what had arrived before a loss.
        self.read: Callable[[], Any] = read or call.__aiter__().__anext__
        """Gives its next event."""
        self.events: list[_Event] = []
        """Came before the race was decided and waits for that."""
        self._reading: asyncio.Task[_Event] | None = None

    def reading(self) -> asyncio.Task[_Event]:
        """The task that reads its next event."""
        if self._reading is None:
            self._reading = asyncio.create_task(self._next(), name="first token race")
        return self._reading

    @property
    def has_read(self) -> bool:
        """Whether `take` gives an event, or raises what came in its place."""
        return self._reading is not None and self._reading.done()

    def take(self) -> _Event:
        """What the task has read."""
        task, self._reading = self.reading(), None
        return task.result()

    async def next(self) -> _Event:
        """The next event, also after a task has begun to read it."""
        if self._reading is None:
            return await self._next()
        task, self._reading = self._reading, None
        return await task

    def leave(self) -> None:
        """It has lost, or nobody wants either: its server stops, and its endpoint is not to blame."""
        self.call.cancel()
        self.attempt.abandoned()
        self.stop()

    def stop(self) -> None:
        """Read no more."""
        if self._reading is not None:
            self._reading.cancel()
            self._reading.add_done_callback(_forget)
            self._reading = None

    async def _next(self) -> _Event:
        event: _Event = await self.read()
        return event


def _forget(task: asyncio.Task[_Event]) -> None:
    """What the loser's status was is nobody's business."""
    if not task.cancelled():
        task.exception()


class FirstTokenRace:
    """Gives the events of whichever attempt has a token first; before a rival is sent, those of the first as they come.

    When one of two fails, the other goes on alone. A failure of the last one is raised, and the race is over.
    """

    def __init__(
        self,
        first: Runner,
        delay_s: float,
        *,
        rival: Callable[[], Runner | None],
        dropped: Callable[[Runner, BaseException], None],
        leads: Callable[[Runner], None],
    ) -> None:
        """`rival` is called once, when the first token is late; `dropped` with a failed one while the other runs;
        `leads` when the rival takes over."""
        self.lead = first
        self._rival: Runner | None = None
        self._make_rival, self._dropped, self._leads = rival, dropped, leads
        self._hedge_at = asyncio.get_running_loop().time() + delay_s
        self._ready: deque[_Event] = deque()
        self._is_over = False

    async def next(self) -> _Event:
        """The next event. Raises what the last attempt ended with."""
        while True:
            if self._ready:
                return self._ready.popleft()
            if self._is_over:
                return await self.lead.next()
            if self._rival is None:
                await self._run_alone()
            else:
                await self._run_together(self.lead, self._rival)

    def leave(self) -> None:
        """The caller wants no more; the lead is its own stream's to end."""
        self._is_over = True
        self.lead.stop()
        if self._rival is not None:
            self._rival.leave()

    async def _run_alone(self) -> None:
        left_s = self._hedge_at - asyncio.get_running_loop().time()
        await asyncio.wait([self.lead.reading()], timeout=max(0.0, left_s))
        if not self.lead.has_read:
            self._rival = self._make_rival()
            self._is_over = self._rival is None
            return
        # Also when it raises.
        self._is_over = True
        event = self.lead.take()
        self._is_over = event.WhichOneof("event") in _DECIDING
        self._ready.append(event)

    async def _run_together(self, lead: Runner, rival: Runner) -> None:
        await asyncio.wait([lead.reading(), rival.reading()], return_when=asyncio.FIRST_COMPLETED)
        for one, other in ((lead, rival), (rival, lead)):
            if not one.has_read:
                continue
            try:
                event = one.take()
            except (StopAsyncIteration, grpc.aio.AioRpcError, asyncio.CancelledError) as error:
                self._dropped(one, error)
                self._decide(other)
                return
            kind = event.WhichOneof("event")
            if kind != "progress":
                one.events.append(event)
            elif one is lead:
                self._ready.append(event)
            if kind in _DECIDING:
                self._decide(one)
                other.leave()
                return

    def _decide(self, winner: Runner) -> None:
        self._is_over, self._rival = True, None
        if winner is not self.lead:
            self._leads(winner)
            self.lead = winner
        self._ready.extend(winner.events)
