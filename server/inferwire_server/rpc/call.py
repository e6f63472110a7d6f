"""What the interceptor knows of the call that a handler is serving."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field

from inferwire.v1 import generation_pb2

from inferwire_server.domain.caller import ANONYMOUS, Caller
from inferwire_server.scheduling.session import Session

Metadata = Mapping[str, str | bytes]


@dataclass(slots=True)
class Call:
    """One RPC. Times are monotonic seconds."""

    method: str
    caller: Caller = ANONYMOUS
    arrived_at: float = 0.0
    deadline: float | None = None
    trace_id: str = ""
    facts: dict[str, str | int | float] = field(default_factory=dict)
    """Content-free facts for the access log and the audit record, filled in by the handler."""
    session: Session | None = None
    """The generation that it reads."""
    request: generation_pb2.GenerateRequest | None = None
    """What asked for it."""


CURRENT: ContextVar[Call] = ContextVar("inferwire_call")


def current_call() -> Call:
    """The call being served."""
    return CURRENT.get()
