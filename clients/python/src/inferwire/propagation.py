"""What a service that calls on passes along: its own deadline, and who retries."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from inferwire.attempts import LAYER_KEY
from inferwire.policy.deadline import Deadline


@dataclass(frozen=True, slots=True)
class Incoming:
    """The call that is being served while another is made."""

    deadline: Deadline = field(default_factory=Deadline)
    is_retried_above: bool = False
    """Its own client retries: a failure is handed up instead of being retried twice."""


_CURRENT: ContextVar[Incoming] = ContextVar("inferwire_incoming")
_NONE = Incoming()


def incoming() -> Incoming:
    """The call being served; an empty one outside of any."""
    return _CURRENT.get(_NONE)


@contextmanager
def serving(context: Any) -> Iterator[Incoming]:
    """Make calls inside part of the RPC with this gRPC servicer context: never later than its deadline, retried by
    its client alone where that is an inferwire client too."""
    remaining = context.time_remaining()
    deadline = Deadline() if remaining is None else Deadline(time.monotonic() + remaining)
    metadata = dict(context.invocation_metadata() or ())
    value = Incoming(deadline, metadata.get(LAYER_KEY) == "client")
    token = _CURRENT.set(value)
    try:
        yield value
    finally:
        _CURRENT.reset(token)
