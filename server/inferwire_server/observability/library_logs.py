"""What libraries log, and exceptions that nobody catches: as lines of the server's log, without content."""

from __future__ import annotations

import logging
import sys
import threading
from typing import Any

import structlog

_log = structlog.get_logger("inferwire.library")


class StructuredHandler(logging.Handler):
    """Passes records on. asyncio puts the repr of failed tasks, and so of exceptions, behind a first line."""

    def emit(self, record: logging.LogRecord) -> None:
        """One line for each record."""
        try:
            text = record.getMessage()
            event = text.partition("\n")[0] if record.name == "asyncio" else text
            error = record.exc_info[1] if record.exc_info else None
            _log.log(record.levelno, event, logger=record.name, **({"exc_info": error} if error else {}))
        except Exception:  # noqa: BLE001 a record that cannot be told must not end whoever logged it
            self.handleError(record)


def follow_libraries() -> None:
    """From now on, for the process. Warnings and worse are told."""
    logging.basicConfig(level=logging.WARNING, handlers=[StructuredHandler()], force=True)
    logging.raiseExceptions = False
    logging.captureWarnings(True)
    threading.excepthook = _thread_failed
    sys.unraisablehook = _not_raised


def _thread_failed(failure: threading.ExceptHookArgs) -> None:
    name = failure.thread.name if failure.thread else ""
    _log.error("a thread failed", thread=name, exc_info=failure.exc_value)


def _not_raised(failure: Any) -> None:
    _log.error("an exception could not be raised", exc_info=failure.exc_value)
