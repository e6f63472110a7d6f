"""A few threads for the work on texts that would hold up the serving loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from inferwire_server.domain.errors import Expired, Overloaded

T = TypeVar("T")

_RETRY_AFTER_S = 1.0


class TextPool:
    """Runs work in at most `threads` threads, with at most `max_waiting` pieces of it waiting for one.

    Work that holds the interpreter lock has one thread more, for itself: two such threads would take the lock in
    turns and leave the loop waiting. A caller whose deadline passes gets its answer then; work that has begun goes
    on and counts until it is done, so callers who give up and come again cannot pile work up.
    """

    def __init__(self, *, threads: int = 2, max_waiting: int = 64, clock: Callable[[], float] = time.monotonic) -> None:
        self._capacity = threads + max_waiting
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix="inferwire-text")
        self._holding_executor = ThreadPoolExecutor(1, thread_name_prefix="inferwire-chat")
        self._clock = clock
        self._jobs: set[Future[Any]] = set()

    @property
    def jobs(self) -> int:
        """Pieces of work that wait or run."""
        self._jobs = {job for job in self._jobs if not job.done()}
        return len(self._jobs)

    async def run(self, work: Callable[[], T], *, holds_lock: bool = False, deadline: float | None = None) -> T:
        """The work's result. Raises what it raises, Overloaded when the pool is full, Expired at the deadline.

        `holds_lock` marks work in Python, as against work in a library that lets the interpreter go. `deadline` is
        in the clock's seconds; None waits for as long as it takes.
        """
        remaining = None if deadline is None else deadline - self._clock()
        if remaining is not None and remaining <= 0:
            raise _expired()
        if self.jobs >= self._capacity:
            raise Overloaded("too many texts wait to be tokenised; try again later", retry_after_s=_RETRY_AFTER_S)
        job = (self._holding_executor if holds_lock else self._executor).submit(work)
        self._jobs.add(job)
        try:
            async with asyncio.timeout(remaining) as limit:
                return await asyncio.wrap_future(job)
        except TimeoutError:
            if limit.expired():
                raise _expired() from None
            raise

    def close(self) -> None:
        """Take no more work and forget what waits; work that has begun ends by itself."""
        self._executor.shutdown(wait=False, cancel_futures=True)
        self._holding_executor.shutdown(wait=False, cancel_futures=True)


def _expired() -> Expired:
    return Expired("the deadline passed while the prompt was being read")
