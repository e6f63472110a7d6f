"""Structured logs on standard error: one line a call, never any content of prompts or outputs."""

from __future__ import annotations

import logging
import sys
from typing import Any

import structlog


def configure_logs(log_format: str, level: str) -> None:
    """Set up logging for the process. `log_format` is json, console, or auto (console on a terminal)."""
    as_console = log_format == "console" or (log_format == "auto" and sys.stderr.isatty())
    shared: list[Any] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    renderers: list[Any] = (
        [structlog.dev.ConsoleRenderer()]
        if as_console
        else [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    )
    structlog.configure(
        processors=[*shared, *renderers],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
