"""W3C trace context: one id that a call keeps from whoever began it to every server's log.

https://www.w3.org/TR/trace-context/. This client records no spans; it passes on, or begins, what others record.
"""

from __future__ import annotations

import re
import secrets

TRACE_KEY = "traceparent"
STATE_KEY = "tracestate"
_VERSION = "00"
_NOT_RECORDED = "00"
_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-([0-9a-f]{2})(?:-.*)?")


def new_trace() -> str:
    """A traceparent that begins a trace."""
    ids = secrets.token_hex(24)
    return f"{_VERSION}-{ids[:32]}-{ids[32:]}-{_NOT_RECORDED}"


def child_of(traceparent: str) -> str:
    """One for a call made while serving the given one: the same trace. Anything malformed begins a new trace."""
    found = _TRACEPARENT.fullmatch(traceparent)
    return f"{_VERSION}-{found[1]}-{secrets.token_hex(8)}-{found[2]}" if found else new_trace()


def trace_id(traceparent: str) -> str:
    """Its trace, or nothing when it is malformed."""
    found = _TRACEPARENT.fullmatch(traceparent)
    return found[1] if found else ""
