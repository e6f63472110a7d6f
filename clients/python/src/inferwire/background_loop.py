"""An event loop in a thread of its own, for callers without one."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import threading
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")
_LAST_LIMIT_S = 10.0


class BackgroundLoop:
    """Started by the first `run`, ended for good by `stop`. Safe to share between threads."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._pid = 0
        self._is_stopped = False

    def run(self, work: Coroutine[Any, Any, T], *, timeout_s: float | None = None) -> T:
        """Run a coroutine there and wait for it; giving up the wait cancels it."""
        future = self.begin(work)
        try:
            return future.result(timeout_s)
        except BaseException:
            future.cancel()
            raise

    def begin(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Run a coroutine there without waiting. Raises RuntimeError after a fork and after `stop`."""
        try:
            return asyncio.run_coroutine_threadsafe(work, self._running())
        except BaseException:
            work.close()
            raise

    def post(self, work: Coroutine[Any, Any, object]) -> None:
        """Run a coroutine there if the loop still runs; for destructors, which must not raise."""
        loop = self._loop
        if loop is None or not loop.is_running() or self._pid != os.getpid():
            work.close()
        else:
            asyncio.run_coroutine_threadsafe(work, loop)

    def stop(self, last: Coroutine[Any, Any, object]) -> None:
        """Run `last` for at most ten seconds, then end what runs and the thread; nothing if none was started."""
        with self._lock:
            loop, thread = self._loop, self._thread
            self._loop = self._thread = None
            self._is_stopped = True
        if loop is None or thread is None or self._pid != os.getpid():
            last.close()
            return
        with suppress(concurrent.futures.TimeoutError):
            asyncio.run_coroutine_threadsafe(_at_the_end(last), loop).result(_LAST_LIMIT_S)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()

    def _running(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is not None and self._pid != os.getpid():
                raise RuntimeError("this was used before a fork; make a client of its own in the child process")
            if self._is_stopped:
                raise RuntimeError("this client is closed; make another one")
            if self._loop is None:
                self._pid = os.getpid()
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._loop.run_forever, name=self._name, daemon=True)
                self._thread.start()
            return self._loop


async def _at_the_end(last: Coroutine[Any, Any, object]) -> None:
    try:
        await last
    finally:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await asyncio.get_running_loop().shutdown_asyncgens()
