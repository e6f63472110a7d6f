"""What a client tells whoever watches it: every attempt, every call, every breaker. Never content."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

_LOG = logging.getLogger("inferwire.client")
# Whoever wants these lines configures logging; without that, a library keeps quiet.
_LOG.addHandler(logging.NullHandler())
_UNREMARKABLE = ("OK", "CANCELLED")
_Record = TypeVar("_Record")


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptEnded:
    """One attempt of a call, sent to one endpoint. Times are seconds."""

    method: str
    """As in `/inferwire.v1.InferenceService/Generate`."""
    region: str
    endpoint: str
    number: int
    """From 0."""
    is_resume: bool
    """Whether it asked for the rest of a stream."""
    is_hedge: bool = False
    """Whether it was sent beside another one that was slow; the one overtaken has ended as CANCELLED."""
    code: str
    """The gRPC code by name; OK for success, CANCELLED where the caller left."""
    reason: str
    """A member of Reason or LocalReason, the code where there is neither, empty for success."""
    duration_s: float
    first_token_s: float | None
    """None for unary calls and streams that had none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallEnded:
    """One call as its caller saw it. Times are seconds."""

    method: str
    code: str
    reason: str
    attempts: int
    """How many were sent; 0 when nothing was."""
    resumed_at: tuple[int, ...]
    """For each resume, the tokens delivered before it."""
    longest_resume_s: float
    """Longest time from the loss of a stream to its next event; 0 without any."""
    duration_s: float
    trace_id: str
    """As in the servers' logs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallWaits:
    """A call stands still between two attempts. Times are seconds."""

    method: str
    code: str
    """How the attempt before has ended."""
    reason: str
    """As of the attempt."""
    message: str
    """What the server said; empty where none did. It is not logged."""
    delay_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerChanged:
    """An endpoint's breaker has a new state."""

    region: str
    endpoint: str
    state: str
    """`closed`, `open` or `half-open`."""


class Observer:
    """Override what is of interest. Called on the event loop, so it must be quick; what it raises is logged."""

    def attempt_ended(self, attempt: AttemptEnded) -> None:
        """An attempt has ended, well or not."""

    def call_ended(self, call: CallEnded) -> None:
        """A call has ended, well or not."""

    def call_waits(self, wait: CallWaits) -> None:
        """A call begins to wait for its next attempt."""

    def breaker_changed(self, change: BreakerChanged) -> None:
        """A breaker opened, lets a probe through, or closed."""


class Announcer:
    """Tells the log and one observer, and lets neither harm a call."""

    def __init__(self, observer: Observer | None = None) -> None:
        self._observer = observer

    def wants(self, code: str) -> bool:
        """Whether anybody would hear of an end with this code."""
        return self._observer is not None or code not in _UNREMARKABLE

    def attempt_ended(self, attempt: AttemptEnded) -> None:
        """Log a failed one."""
        if attempt.code not in _UNREMARKABLE:
            where = f"{attempt.region}/{attempt.endpoint}"
            arguments = (attempt.number, attempt.method, where, attempt.code, attempt.reason)
            _log(logging.INFO, "attempt_failed", attempt, "attempt %d of %s at %s failed: %s %s", *arguments)
        if self._observer is not None:
            self._tell(self._observer.attempt_ended, attempt)

    def call_ended(self, call: CallEnded) -> None:
        """Log one that failed, or that was resumed."""
        if call.code not in _UNREMARKABLE:
            arguments = (call.method, call.attempts, call.code, call.reason)
            _log(logging.WARNING, "call_failed", call, "%s failed after %d attempts: %s %s", *arguments)
        elif call.resumed_at:
            places = ", ".join(map(str, call.resumed_at))
            _log(logging.INFO, "stream_resumed", call, "%s went on elsewhere after %s tokens", call.method, places)
        if self._observer is not None:
            self._tell(self._observer.call_ended, call)

    def call_waits(self, wait: CallWaits) -> None:
        """The attempt that it comes of is logged already."""
        if self._observer is not None:
            self._tell(self._observer.call_waits, wait)

    def breaker_changed(self, change: BreakerChanged) -> None:
        """Log every one."""
        arguments = (change.region, change.endpoint, change.state)
        _log(logging.WARNING, "breaker_changed", change, "the breaker of %s/%s is %s", *arguments)
        if self._observer is not None:
            self._tell(self._observer.breaker_changed, change)

    def _tell(self, hook: Callable[[_Record], None], record: _Record) -> None:
        try:
            hook(record)
        except Exception:  # noqa: BLE001 whatever it is, it is logged whole
            _LOG.exception("an observer raised; the call that it watched goes on")


def _log(
    level: int, event: str, record: AttemptEnded | CallEnded | BreakerChanged, text: str, *arguments: object
) -> None:
    if _LOG.isEnabledFor(level):
        fields = {name: getattr(record, name) for name in record.__dataclass_fields__}
        _LOG.log(level, text, *arguments, extra={"event": event, "inferwire": fields})
