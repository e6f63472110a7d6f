"""What callers catch.

InferwireError
├── InvalidRequest
├── NotFound
├── Unsupported
├── ModelMismatch
├── KeyConflict
├── Unauthenticated
├── Forbidden
├── Exhausted
│   ├── Overloaded
│   └── QuotaExceeded
├── DeadlineExceeded
│   ├── WouldExceed
│   └── Expired
├── Unavailable
│   └── AllRegionsDown
├── Aborted
│   ├── Fenced
│   ├── ResumeLost
│   ├── ReaderStalled
│   └── CancelledByOperator
├── Cancelled
├── ServerFault
└── StreamBroken
    ├── StreamLost
    ├── StreamStalled
    ├── StreamGap
    ├── StreamRepeat
    ├── StreamTruncated
    └── StreamDiverged
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar


class Code(enum.StrEnum):
    """The gRPC status codes by name."""

    OK = "OK"
    CANCELLED = "CANCELLED"
    UNKNOWN = "UNKNOWN"
    INVALID_ARGUMENT = "INVALID_ARGUMENT"
    DEADLINE_EXCEEDED = "DEADLINE_EXCEEDED"
    NOT_FOUND = "NOT_FOUND"
    ALREADY_EXISTS = "ALREADY_EXISTS"
    PERMISSION_DENIED = "PERMISSION_DENIED"
    RESOURCE_EXHAUSTED = "RESOURCE_EXHAUSTED"
    FAILED_PRECONDITION = "FAILED_PRECONDITION"
    ABORTED = "ABORTED"
    OUT_OF_RANGE = "OUT_OF_RANGE"
    UNIMPLEMENTED = "UNIMPLEMENTED"
    INTERNAL = "INTERNAL"
    UNAVAILABLE = "UNAVAILABLE"
    DATA_LOSS = "DATA_LOSS"
    UNAUTHENTICATED = "UNAUTHENTICATED"


class Reason(enum.StrEnum):
    """Why a server refused or ended a call: `ErrorReason` of the contract, without its prefix."""

    INVALID_FIELD = "INVALID_FIELD"
    MODEL_NOT_FOUND = "MODEL_NOT_FOUND"
    CAPABILITY_ABSENT = "CAPABILITY_ABSENT"
    MODEL_MISMATCH = "MODEL_MISMATCH"
    OVERLOADED = "OVERLOADED"
    QUOTA = "QUOTA"
    WOULD_EXCEED = "WOULD_EXCEED"
    EXPIRED = "EXPIRED"
    DRAINING = "DRAINING"
    STARTING = "STARTING"
    ENGINE_DOWN = "ENGINE_DOWN"
    FENCED = "FENCED"
    RESUME_LOST = "RESUME_LOST"
    READER_STALLED = "READER_STALLED"
    CANCELLED_BY_OPERATOR = "CANCELLED_BY_OPERATOR"
    KEY_CONFLICT = "KEY_CONFLICT"
    GENERATION_NOT_FOUND = "GENERATION_NOT_FOUND"
    UNAUTHENTICATED = "UNAUTHENTICATED"
    FORBIDDEN = "FORBIDDEN"
    INTERNAL = "INTERNAL"


class LocalReason(enum.StrEnum):
    """Why this client sent nothing, or gave up on what a server sent."""

    BREAKER_OPEN = "BREAKER_OPEN"
    """The endpoint failed too often lately."""
    NOT_SERVING = "NOT_SERVING"
    """The endpoint's health service says so."""
    THROTTLED = "THROTTLED"
    """The endpoint refuses most requests; this one was not sent."""
    ALREADY_TRIED = "ALREADY_TRIED"
    """This call has failed there and going back cannot help."""
    TOO_SLOW = "TOO_SLOW"
    """The endpoint's first token would come after the deadline."""
    NO_ENDPOINT = "NO_ENDPOINT"
    """The region has no address, as after a name that resolves to nothing."""
    CONNECTION_LOST = "CONNECTION_LOST"
    """The transport failed or refused to connect."""
    STALLED = "STALLED"
    """Nothing came for the stall time."""
    PROTOCOL = "PROTOCOL"
    """The stream broke the contract's grammar."""
    NO_CREDENTIAL = "NO_CREDENTIAL"
    """There was no credential to send: its file or its function gave none."""


@dataclass(frozen=True, slots=True)
class FieldViolation:
    """One request field at fault."""

    field: str
    """Path in the request, as in `sampling.top_p`."""
    description: str


@dataclass(frozen=True, slots=True)
class PartialOutput:
    """What was delivered of one output before the call failed."""

    output_index: int
    text: str
    token_ids: tuple[int, ...] = ()
    """Empty when the stream carried none."""


@dataclass(frozen=True, slots=True)
class AttemptReport:
    """One attempt of a call and how it ended."""

    region: str
    endpoint: str
    code: str
    reason: str = ""


class InferwireError(Exception):
    """A call that failed. The message says what happened and, where the caller can act, what to do."""

    default_code: ClassVar[Code] = Code.UNKNOWN
    _facts: ClassVar[tuple[str, ...]] = (
        "code",
        "reason",
        "retry_after_s",
        "started",
        "field_violations",
        "error_id",
        "partial_outputs",
        "events_so_far",
        "attempts",
    )

    def __init__(
        self,
        message: str,
        *,
        code: Code | None = None,
        reason: str = "",
        retry_after_s: float | None = None,
        started: bool = False,
        field_violations: Sequence[FieldViolation] = (),
        error_id: str = "",
        partial_outputs: Sequence[PartialOutput] = (),
        events_so_far: int = 0,
        attempts: Sequence[AttemptReport] = (),
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code or self.default_code
        """The gRPC code; compares equal to its name."""
        self.reason = reason
        """A member of Reason or LocalReason, a newer server's reason, or empty."""
        self.retry_after_s = retry_after_s
        """Seconds after which the server says that trying again is useful; None when it does not."""
        self.started = started
        """Whether an engine had taken the request."""
        self.field_violations = tuple(field_violations)
        self.error_id = error_id
        """Of an INTERNAL error: the server's log has the cause under it."""
        self.partial_outputs = tuple(partial_outputs)
        """What a stream had delivered."""
        self.events_so_far = events_so_far
        """How many events a stream had delivered."""
        self.attempts = tuple(attempts)
        """Every attempt, first to last."""

    @property
    def text_so_far(self) -> str:
        """What a stream had delivered of its first output."""
        return next((output.text for output in self.partial_outputs if output.output_index == 0), "")

    def __reduce__(self) -> tuple[Any, ...]:
        # Keyword-only arguments are lost by the default way, and task queues pickle what a task raises.
        return partial(type(self), **{name: getattr(self, name) for name in self._facts}), (self.message,)


class InvalidRequest(InferwireError):
    """A field is malformed, out of range or does not fit the model; see `field_violations`."""

    default_code = Code.INVALID_ARGUMENT


class NotFound(InferwireError):
    """No such model or generation there."""

    default_code = Code.NOT_FOUND


class Unsupported(InferwireError):
    """The model's engine cannot honour a field, or the server does not know the method."""

    default_code = Code.UNIMPLEMENTED


class ModelMismatch(InferwireError):
    """The model served is not the expected one."""

    default_code = Code.FAILED_PRECONDITION


class KeyConflict(InferwireError):
    """The request id is in use with other content."""

    default_code = Code.ALREADY_EXISTS


class Unauthenticated(InferwireError):
    """No credential, or one that is not valid."""

    default_code = Code.UNAUTHENTICATED


class Forbidden(InferwireError):
    """The credential does not permit this call."""

    default_code = Code.PERMISSION_DENIED


class Exhausted(InferwireError):
    """Something is used up or too large, such as a message over the size limit."""

    default_code = Code.RESOURCE_EXHAUSTED


class Overloaded(Exhausted):
    """The server has no room now."""


class QuotaExceeded(Exhausted):
    """The tenant is over its own quota."""


class DeadlineExceeded(InferwireError):
    """The call's deadline passed."""

    default_code = Code.DEADLINE_EXCEEDED


class WouldExceed(DeadlineExceeded):
    """Refused at once, since the first token could not have come in time."""


class Expired(DeadlineExceeded):
    """The deadline passed while the server held the request."""


class Unavailable(InferwireError):
    """No server could take the request, or the connection was lost."""

    default_code = Code.UNAVAILABLE


class AllRegionsDown(Unavailable):
    """No allowed region has an endpoint that may be tried now."""

    _facts = (*InferwireError._facts, "regions")

    def __init__(self, message: str, *, regions: Mapping[str, str], **facts: Any) -> None:
        super().__init__(message, **facts)
        self.regions = dict(regions)
        """Region name to the reason it was not tried or failed."""


class Aborted(InferwireError):
    """The generation was ended by a rule."""

    default_code = Code.ABORTED


class Fenced(Aborted):
    """A later attempt of the same request has taken over."""


class ResumeLost(Aborted):
    """The server cannot prove that a continuation equals what was delivered."""


class ReaderStalled(Aborted):
    """This reader took nothing for too long."""


class CancelledByOperator(Aborted):
    """An operator ended the generation."""


class Cancelled(InferwireError):
    """The caller cancelled."""

    default_code = Code.CANCELLED


class ServerFault(InferwireError):
    """A fault of the service; quote `error_id` to its operators."""

    default_code = Code.INTERNAL


class StreamBroken(InferwireError):
    """A stream ended before Completed; `text_so_far` is what it had delivered."""

    default_code = Code.UNAVAILABLE


class StreamLost(StreamBroken):
    """The server or the connection was lost in mid-stream and nothing could continue it."""


class StreamStalled(StreamBroken):
    """Nothing came for the stall time and nothing could continue the stream."""


class StreamGap(StreamBroken):
    """Tokens are missing between two deltas."""

    default_code = Code.DATA_LOSS


class StreamRepeat(StreamBroken):
    """The server sent tokens twice."""

    default_code = Code.DATA_LOSS


class StreamTruncated(StreamBroken):
    """The server ended the stream with success but without its last events."""

    default_code = Code.DATA_LOSS


class StreamDiverged(StreamBroken):
    """A continuation differs from what was delivered."""

    default_code = Code.DATA_LOSS


_BY_REASON: Mapping[str, type[InferwireError]] = {
    Reason.INVALID_FIELD: InvalidRequest,
    Reason.MODEL_NOT_FOUND: NotFound,
    Reason.GENERATION_NOT_FOUND: NotFound,
    Reason.CAPABILITY_ABSENT: Unsupported,
    Reason.MODEL_MISMATCH: ModelMismatch,
    Reason.OVERLOADED: Overloaded,
    Reason.QUOTA: QuotaExceeded,
    Reason.WOULD_EXCEED: WouldExceed,
    Reason.EXPIRED: Expired,
    Reason.DRAINING: Unavailable,
    Reason.STARTING: Unavailable,
    Reason.ENGINE_DOWN: Unavailable,
    Reason.FENCED: Fenced,
    Reason.RESUME_LOST: ResumeLost,
    Reason.READER_STALLED: ReaderStalled,
    Reason.CANCELLED_BY_OPERATOR: CancelledByOperator,
    Reason.KEY_CONFLICT: KeyConflict,
    Reason.UNAUTHENTICATED: Unauthenticated,
    Reason.FORBIDDEN: Forbidden,
    Reason.INTERNAL: ServerFault,
}
_BY_CODE: Mapping[Code, type[InferwireError]] = {
    Code.CANCELLED: Cancelled,
    Code.UNKNOWN: ServerFault,
    Code.INVALID_ARGUMENT: InvalidRequest,
    Code.DEADLINE_EXCEEDED: DeadlineExceeded,
    Code.NOT_FOUND: NotFound,
    Code.PERMISSION_DENIED: Forbidden,
    Code.RESOURCE_EXHAUSTED: Exhausted,
    Code.ABORTED: Aborted,
    Code.OUT_OF_RANGE: InvalidRequest,
    Code.UNIMPLEMENTED: Unsupported,
    Code.INTERNAL: ServerFault,
    Code.UNAVAILABLE: Unavailable,
    Code.DATA_LOSS: ServerFault,
    Code.UNAUTHENTICATED: Unauthenticated,
}


def error_class(code: Code, reason: str = "") -> type[InferwireError]:
    """The class for a status: by the service's reason where it is known, else by the code."""
    return _BY_REASON.get(reason) or _BY_CODE.get(code, InferwireError)
