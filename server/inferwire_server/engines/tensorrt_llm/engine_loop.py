"""An event loop on a thread of its own: the engine may block it, and then only it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable

_BEAT_S = 0.2


class EngineLoop:
    """Runs `prepare` and then an event loop on one daemon thread. Not reusable after `stop`."""

    def __init__(self, *, name: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._prepare: Callable[[], object] = bool
        self._stopped = threading.Event()
        self.last_beat: float | None = None
        """When the loop last answered (monotonic seconds); None before it runs and after it stopped."""

    def start(self, prepare: Callable[[], object]) -> None:
        """Begin; `prepare` runs first on the new thread and must not raise."""
        self._prepare = prepare
        self._loop = asyncio.new_event_loop()
        self._thread.start()

    def post(self, callback: Callable[..., object], *arguments: object) -> bool:
        """Call from any thread; False when the loop is gone."""
        if self._loop is None:
            return False
        return post_to(self._loop, callback, *arguments)

    def stop(self, timeout_s: float) -> bool:
        """Cancel what runs on the loop and end it; blocks. False when it does not answer in time."""
        if self._loop is None:
            return True
        self.post(self._loop.stop)
        return self._stopped.wait(timeout_s)

    def _run(self) -> None:
        loop = self._loop
        assert loop is not None  # noqa: S101 - start() sets it before the thread begins
        self._prepare()
        loop.call_soon(self._beat, loop)
        try:
            loop.run_forever()
            self.last_beat = None
            loop.run_until_complete(_cancel_all())
            loop.run_until_complete(loop.shutdown_asyncgens())
        finally:
            loop.close()
            self._stopped.set()

    def _beat(self, loop: asyncio.AbstractEventLoop) -> None:
        self.last_beat = self._clock()
        loop.call_later(_BEAT_S, self._beat, loop)


async def _cancel_all() -> None:
    remaining = asyncio.all_tasks() - {asyncio.current_task()}
    for task in remaining:
        task.cancel()
    await asyncio.gather(*remaining, return_exceptions=True)


def post_to(loop: asyncio.AbstractEventLoop, callback: Callable[..., object], *arguments: object) -> bool:
    """Call on a loop from any thread; False when the loop is closed."""
    try:
        loop.call_soon_threadsafe(callback, *arguments)
    except RuntimeError:
        return False
    return True
