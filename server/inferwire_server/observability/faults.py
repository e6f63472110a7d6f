"""Faults of ours: the log gets the stack, the caller gets an id."""

from __future__ import annotations

import secrets

import structlog

from inferwire_server.domain.errors import InternalError

_log = structlog.get_logger("inferwire.fault")


def record_fault(error: BaseException, *, started: bool = False) -> InternalError:
    """Log an unexpected exception with its stack under a new error id and return what the caller may see."""
    error_id = secrets.token_hex(8)
    _log.error("internal error", error_id=error_id, exc_info=error)
    return InternalError(error_id, started=started)
