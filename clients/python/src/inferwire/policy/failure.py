"""What went wrong with one attempt, in the terms that decisions are made on."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from inferwire.errors import Code, LocalReason


class FailureKind(enum.Enum):
    """Who ended the attempt."""

    STATUS = "status"
    """A server, or a proxy, answered with a status."""
    CONNECTION = "connection"
    """The transport was lost or refused; nobody answered."""
    STALL = "stall"
    """Nothing came for the stall time; this client cancelled the attempt."""
    PROTOCOL = "protocol"
    """The stream broke the contract: a gap, a repeat, no Completed, a divergence."""
    DEADLINE = "deadline"
    """The caller's deadline passed."""
    CANCELLED = "cancelled"
    """The caller cancelled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """One failed attempt."""

    kind: FailureKind
    code: Code
    reason: str = ""
    """The service's reason; empty when the status is not the service's own."""
    hint_s: float | None = None
    """Seconds after which the server says that a retry is useful; None when it does not."""
    started: bool = False
    """Whether the engine had taken this attempt."""

    def __str__(self) -> str:
        local = {FailureKind.CONNECTION: LocalReason.CONNECTION_LOST, FailureKind.STALL: LocalReason.STALLED}
        return self.reason or local.get(self.kind, self.code)


@dataclass(frozen=True, slots=True)
class Pushback:
    """What a server says about trying again."""

    hint_s: float | None
    """Seconds after which it is useful; None: never."""


def read_pushback(trailer: str | None, retry_info_s: float | None) -> Pushback | None:
    """The trailer `grpc-retry-pushback-ms` where there is one, else RetryInfo, else None.

    A trailer that is negative or no number means never (gRPC proposal A6).
    """
    if trailer is None:
        return None if retry_info_s is None else Pushback(retry_info_s)
    return Pushback(int(trailer) / 1000) if trailer.isascii() and trailer.isdigit() else Pushback(None)


_RESETS = (
    "rst_stream",
    "stream removed",
    "connection reset",
    "socket closed",
    "goaway",
    "upstream connect error",
    "upstream reset",
)
# A server that closes ends calls that it has not looked at as CANCELLED; what this side cancels is no status.
_LOSSES = frozenset({Code.UNAVAILABLE, Code.CANCELLED})
_NAMELESS_LOSSES = frozenset({Code.INTERNAL, Code.UNKNOWN})


def status_failure(
    code: Code,
    *,
    reason: str = "",
    pushback: Pushback | None = None,
    started: bool = False,
    details: str = "",
) -> Failure:
    """What a status means: gRPC's own UNAVAILABLE, a CANCELLED that nobody here asked for and a proxy's reset are lost
    connections, the rest are answers.

    `reason` is the service's own, `details` the status message.
    """
    if reason or pushback is not None:
        kind = FailureKind.STATUS
    elif code in _LOSSES or (code in _NAMELESS_LOSSES and any(text in details.lower() for text in _RESETS)):
        kind = FailureKind.CONNECTION
    else:
        kind = FailureKind.STATUS
    hint_s = pushback.hint_s if pushback is not None else None
    return Failure(kind=kind, code=code, reason=reason, hint_s=hint_s, started=started)
