"""The error of one request: a RuntimeError, so the order of except clauses matters."""

from __future__ import annotations

import asyncio


class RequestError(RuntimeError):
    """One request failed in the worker; the engine lives."""


def has_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
