"""Structured logs on standard error: one line a call, never any content of prompts or outputs."""

from __future__ import annotations

import atexit
import json
import logging
import os
import sys
import time
from json.encoder import encode_basestring_ascii
from typing import Any

import structlog

from inferwire_server.observability.library_logs import follow_libraries
from inferwire_server.observability.log_writer import STANDARD_ERROR
from inferwire_server.observability.tracebacks import without_messages

_CLOSED = -1


def configure_logs(log_format: str, level: str) -> None:
    """Set up logging for the process. `log_format` is json, console, or auto (console on a terminal)."""
    descriptor = sys.stderr.fileno() if sys.stderr is not None else _CLOSED
    as_console = log_format == "console" or (log_format == "auto" and os.isatty(descriptor))
    STANDARD_ERROR.start(descriptor)
    atexit.register(STANDARD_ERROR.close)
    processors: list[Any] = [
        structlog.processors.add_log_level,
        UtcStamp(),
        tell_exception,
        structlog.dev.ConsoleRenderer() if as_console else json_line,
    ]
    structlog.configure(
        processors=processors,
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=LineLogger,
        cache_logger_on_first_use=True,
    )
    follow_libraries()


class LineLogger:
    """What structlog hands rendered lines to."""

    def __init__(self, *names: str) -> None:
        """What loggers are called is in no line."""

    def msg(self, line: str) -> None:
        """Of any level."""
        STANDARD_ERROR.put(line)

    debug = info = warning = error = critical = msg


class UtcStamp:
    """Adds `timestamp` in ISO 8601 to the microsecond; the text of a second is made once."""

    def __init__(self) -> None:
        self._second = -1
        self._text = ""

    def __call__(self, logger: Any, method: str, event: dict[str, Any]) -> dict[str, Any]:
        now = time.time_ns() // 1000
        second, micros = divmod(now, 1_000_000)
        if second != self._second:
            self._second, self._text = second, time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
        event["timestamp"] = f"{self._text}.{micros:06d}Z"
        return event


def tell_exception(logger: Any, method: str, event: dict[str, Any]) -> dict[str, Any]:
    """Turn `exc_info` into a stack without messages, and without the values of variables."""
    given = event.pop("exc_info", None)
    error = sys.exc_info()[1] if given is True else given[1] if isinstance(given, tuple) else given
    if isinstance(error, BaseException):
        event["exception"] = without_messages(error)
    return event


def json_line(logger: Any, method: str, event: dict[str, Any]) -> str:
    """One JSON object; what JSON has no word for is written as its `repr`. json.dumps takes three times as long."""
    quoted = encode_basestring_ascii
    members = [f"{quoted(k)}: {quoted(v) if type(v) is str else _json(v)}" for k, v in event.items()]
    return "{" + ", ".join(members) + "}"


def _json(value: Any) -> str:
    if type(value) is int or type(value) is float:
        return repr(value)
    return json.dumps(value, default=repr)
