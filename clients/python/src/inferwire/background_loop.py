"""An event loop in a thread of its own, for callers without one."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class BackgroundLoop:
    """Started by the first `run`, ended by `stop`. Safe to share between threads."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._pid = 0

    def run(self, work: Coroutine[Any, Any, T], *, timeout_s: float | None = None) -> T:
        """Run a coroutine there and wait for it; giving up the wait cancels it."""
        future = asyncio.run_coroutine_threadsafe(work, self._running())
        try:
            return future.result(timeout_s)
        except BaseException:
            future.cancel()
            raise

    def post(self, work: Coroutine[Any, Any, object]) -> None:
        """Run a coroutine there without waiting; not at all when the loop has ended."""
        with self._lock:
            loop = self._loop
        if loop is None or loop.is_closed() or self._pid != os.getpid():
            work.close()
        else:
            asyncio.run_coroutine_threadsafe(work, loop)

    def stop(self, last: Coroutine[Any, Any, object] | None = None) -> None:
        """Run `last`, then end the thread. Does nothing when it was never started."""
        with self._lock:
            loop, thread = self._loop, self._thread
            self._loop = self._thread = None
        if loop is None or thread is None or self._pid != os.getpid():
            if last is not None:
                last.close()
            return
        if last is not None:
            asyncio.run_coroutine_threadsafe(last, loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()

    def _running(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is not None and self._pid != os.getpid():
                raise RuntimeError("this client was used before a fork; make one in the child process")
            if self._loop is None:
                self._pid = os.getpid()
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._loop.run_forever, name=self._name, daemon=True)
                self._thread.start()
            return self._loop
