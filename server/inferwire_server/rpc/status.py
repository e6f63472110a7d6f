"""The one table from domain error to gRPC status, and the details that go with it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import grpc
from google.protobuf import any_pb2, duration_pb2
from google.rpc import error_details_pb2, status_pb2

from inferwire_server.domain.errors import (
    CancelledByCaller,
    CancelledByOperator,
    CapabilityAbsent,
    Draining,
    EngineDown,
    Expired,
    Fenced,
    Forbidden,
    GenerationNotFound,
    InternalError,
    InvalidRequest,
    KeyConflict,
    ModelMismatch,
    ModelNotFound,
    Overloaded,
    QuotaExceeded,
    ReaderStalled,
    ResumeLost,
    ServiceError,
    Starting,
    Unauthenticated,
    WouldExceed,
)

DOMAIN = "inferwire"
MAX_DETAILS_BYTES = 1024
_MAX_MESSAGE_CHARACTERS = 300

_Code = grpc.StatusCode
STATUS: dict[type[ServiceError], tuple[grpc.StatusCode, str]] = {
    InvalidRequest: (_Code.INVALID_ARGUMENT, "INVALID_FIELD"),
    ModelNotFound: (_Code.NOT_FOUND, "MODEL_NOT_FOUND"),
    GenerationNotFound: (_Code.NOT_FOUND, "GENERATION_NOT_FOUND"),
    CapabilityAbsent: (_Code.UNIMPLEMENTED, "CAPABILITY_ABSENT"),
    ModelMismatch: (_Code.FAILED_PRECONDITION, "MODEL_MISMATCH"),
    Overloaded: (_Code.RESOURCE_EXHAUSTED, "OVERLOADED"),
    QuotaExceeded: (_Code.RESOURCE_EXHAUSTED, "QUOTA"),
    WouldExceed: (_Code.DEADLINE_EXCEEDED, "WOULD_EXCEED"),
    Expired: (_Code.DEADLINE_EXCEEDED, "EXPIRED"),
    Draining: (_Code.UNAVAILABLE, "DRAINING"),
    Starting: (_Code.UNAVAILABLE, "STARTING"),
    EngineDown: (_Code.UNAVAILABLE, "ENGINE_DOWN"),
    Fenced: (_Code.ABORTED, "FENCED"),
    ResumeLost: (_Code.ABORTED, "RESUME_LOST"),
    ReaderStalled: (_Code.ABORTED, "READER_STALLED"),
    CancelledByOperator: (_Code.ABORTED, "CANCELLED_BY_OPERATOR"),
    KeyConflict: (_Code.ALREADY_EXISTS, "KEY_CONFLICT"),
    Unauthenticated: (_Code.UNAUTHENTICATED, "UNAUTHENTICATED"),
    Forbidden: (_Code.PERMISSION_DENIED, "FORBIDDEN"),
    CancelledByCaller: (_Code.CANCELLED, ""),
    InternalError: (_Code.INTERNAL, "INTERNAL"),
}
"""Families without an entry (Unavailable, Aborted) are never raised themselves."""

REASONS = tuple(reason for _, reason in STATUS.values() if reason)
"""Every reason that a refusal can have."""
CODES = tuple(code.name for code in grpc.StatusCode)

_HINTED = (Overloaded, QuotaExceeded, Draining, Starting, EngineDown)


@dataclass(frozen=True, slots=True)
class WireStatus:
    """What goes on the wire for an error."""

    code: grpc.StatusCode
    reason: str
    message: str
    trailers: tuple[tuple[str, str | bytes], ...]


def wire_status(error: ServiceError) -> WireStatus:
    """The status, message and trailers of a domain error; details are at most 1 KiB."""
    code, reason = STATUS[type(error)]
    message = _spelled(error.message, _MAX_MESSAGE_CHARACTERS)
    if not reason:
        return WireStatus(code, reason, message, ())
    hint_s = retry_hint_s(error)
    trailers: list[tuple[str, str | bytes]] = [
        ("grpc-status-details-bin", _details(error, code, reason, message, hint_s))
    ]
    if hint_s is not None:
        trailers.append(("grpc-retry-pushback-ms", str(round(hint_s * 1000))))
        trailers.append(("retry-after", str(math.ceil(hint_s))))
    return WireStatus(code, reason, message, tuple(trailers))


def retry_hint_s(error: ServiceError) -> float | None:
    """Seconds to wait before a retry; None when the request was started or a retry is useless."""
    if error.started or not isinstance(error, _HINTED):
        return None
    if isinstance(error, QuotaExceeded) and error.retry_after_s is None:
        return None
    return 1.0 if error.retry_after_s is None else max(0.0, error.retry_after_s)


def _details(error: ServiceError, code: grpc.StatusCode, reason: str, message: str, hint_s: float | None) -> bytes:
    info = error_details_pb2.ErrorInfo(reason=reason, domain=DOMAIN)
    info.metadata["started"] = "true" if error.started else "false"
    if error.field:
        info.metadata["field"] = _spelled(error.field, 100)
    if error.limit is not None:
        info.metadata["limit"] = str(error.limit)
    if error.actual is not None:
        info.metadata["actual"] = str(error.actual)
    if isinstance(error, InternalError):
        info.metadata["error_id"] = error.error_id
    details: list[any_pb2.Any] = [_pack(info)]
    if isinstance(error, InvalidRequest):
        violation = error_details_pb2.BadRequest.FieldViolation(
            field=_spelled(error.field, 100), description=_spelled(error.violation, 200)
        )
        details.append(_pack(error_details_pb2.BadRequest(field_violations=[violation])))
    if isinstance(error, QuotaExceeded):
        failure = error_details_pb2.QuotaFailure.Violation(
            subject="tenant",
            description=message[:200],
            quota_id=_spelled(error.quota, 100),
            quota_value=error.limit or 0,
        )
        details.append(_pack(error_details_pb2.QuotaFailure(violations=[failure])))
    if hint_s is not None:
        delay = duration_pb2.Duration()
        delay.FromMilliseconds(round(hint_s * 1000))
        details.append(_pack(error_details_pb2.RetryInfo(retry_delay=delay)))
    number: int = code.value[0]
    status = status_pb2.Status(code=number, message=message, details=details)
    encoded: bytes
    while (encoded := status.SerializeToString()) and len(encoded) > MAX_DETAILS_BYTES:
        status.message = status.message[: len(status.message) // 2]
        if not status.message:
            del status.details[1:]
    return encoded


def _spelled(text: str, most: int) -> str:
    """At most so many characters; a surrogate, which UTF-8 cannot carry, is spelled as in `\\ud800`.

    Callers send them in the escapes of JSON, and a message that names a member repeats them.
    """
    return text[:most].encode(errors="backslashreplace").decode()[:most]


def _pack(
    message: error_details_pb2.ErrorInfo
    | error_details_pb2.BadRequest
    | error_details_pb2.QuotaFailure
    | error_details_pb2.RetryInfo,
) -> any_pb2.Any:
    packed = any_pb2.Any()
    packed.Pack(message)
    return packed
