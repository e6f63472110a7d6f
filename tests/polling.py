"""Waiting for what happens soon, without guessing how soon."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable


async def until(condition: Callable[[], bool], within_s: float = 10.0) -> None:
    """Yield to the loop until `condition` holds; fail after a generous bound."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        await asyncio.sleep(0.005)


async def until_it_says(wanted: object, look: Callable[[], Awaitable[object]], within_s: float = 20.0) -> None:
    """The same for an answer that has to be waited for."""
    deadline = time.monotonic() + within_s
    while (said := await look()) != wanted:
        assert time.monotonic() < deadline, f"it still says {said!r}, not {wanted!r}"
        await asyncio.sleep(0.05)
