"""What a service that calls on passes along: its own deadline, who retries, and the trace."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from inferwire.attempts import LAYER_KEY, Metadata
from inferwire.policy.deadline import Deadline
from inferwire.trace_context import STATE_KEY, TRACE_KEY, child_of, new_trace


@dataclass(frozen=True, slots=True)
class Incoming:
    """The call that is being served while another is made."""

    deadline: Deadline = field(default_factory=Deadline)
    is_retried_above: bool = False
    """Its own client retries: a failure is handed up instead of being retried twice."""
    traceparent: str = ""
    """W3C trace context, as it came; empty without one."""
    tracestate: str = ""

    def traced(self, metadata: Metadata) -> Metadata:
        """Metadata of a call made meanwhile: in the same trace, or in one that begins here. What the caller has set by
        itself stays."""
        if any(key == TRACE_KEY for key, _ in metadata):
            return metadata
        if not self.traceparent:
            return (*metadata, (TRACE_KEY, new_trace()))
        state = ((STATE_KEY, self.tracestate),) if self.tracestate else ()
        return (*metadata, (TRACE_KEY, child_of(self.traceparent)), *state)


_CURRENT: ContextVar[Incoming] = ContextVar("inferwire_incoming")
_NONE = Incoming()


def incoming() -> Incoming:
    """The call being served; an empty one outside of any."""
    return _CURRENT.get(_NONE)


@contextmanager
def serving(context: Any) -> Iterator[Incoming]:
    """Make calls inside part of the RPC with this gRPC servicer context: never later than its deadline, retried by
    its client alone where that is an inferwire client too, in its trace."""
    remaining = context.time_remaining()
    deadline = Deadline() if remaining is None else Deadline(time.monotonic() + remaining)
    metadata = dict(context.invocation_metadata() or ())
    traceparent, tracestate = (metadata.get(key, "") for key in (TRACE_KEY, STATE_KEY))
    value = Incoming(
        deadline,
        metadata.get(LAYER_KEY) == "client",
        traceparent if isinstance(traceparent, str) else "",
        tracestate if isinstance(tracestate, str) else "",
    )
    token = _CURRENT.set(value)
    try:
        yield value
    finally:
        _CURRENT.reset(token)
