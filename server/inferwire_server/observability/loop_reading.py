"""Reads what belongs to the serving loop from other threads, without a lock and without holding the loop up."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

T = TypeVar("T")


class LoopReading(Generic[T]):
    """Callable from any thread. A loop that is too busy to answer in time leaves the latest value standing."""

    def __init__(self, read: Callable[[], T], *, patience_s: float = 1.0) -> None:
        """`read` is called on the loop that `attach` is called on; before that, in the calling thread."""
        self._read = read
        self._patience_s = patience_s
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = 0
        self._latest: T | None = None

    def attach(self) -> None:
        """From now on, values are read on the running loop."""
        self._latest = self._read()
        self._thread = threading.get_ident()
        self._loop = asyncio.get_running_loop()

    def __call__(self) -> T:
        """The value now, or a moment ago."""
        if self._loop is None or threading.get_ident() == self._thread:
            return self._read()
        answer: Future[T] = Future()
        try:
            self._loop.call_soon_threadsafe(self._answer, answer)
            self._latest = answer.result(self._patience_s)
        except (TimeoutError, RuntimeError):
            # Busy, or closed.
            pass
        assert self._latest is not None  # noqa: S101 set by attach
        return self._latest

    def _answer(self, answer: Future[T]) -> None:
        try:
            answer.set_result(self._read())
        except Exception as fault:  # noqa: BLE001 it belongs to whoever asked
            answer.set_exception(fault)
