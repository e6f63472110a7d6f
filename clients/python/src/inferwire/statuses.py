"""From a gRPC status to the error that callers catch."""

from __future__ import annotations

from typing import Any

import grpc
from google.rpc import error_details_pb2, status_pb2

from inferwire.errors import Code, FieldViolation, InferwireError, error_class

_DETAILS = "grpc-status-details-bin"
_PUSHBACK = "grpc-retry-pushback-ms"


def error_from(failure: grpc.RpcError, **facts: Any) -> InferwireError:
    """The typed error of a failed call; `facts` are further arguments of it."""
    status: Any = failure
    code = Code(status.code().name)
    trailers = dict(status.trailing_metadata() or ())
    info, violations = _details(trailers.get(_DETAILS))
    return error_class(code, info.reason)(
        status.details() or code,
        code=code,
        reason=info.reason,
        retry_after_s=_seconds(trailers.get(_PUSHBACK)),
        started=info.metadata.get("started") == "true",
        error_id=info.metadata.get("error_id", ""),
        field_violations=violations,
        **facts,
    )


def _details(encoded: Any) -> tuple[error_details_pb2.ErrorInfo, list[FieldViolation]]:
    info, bad = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest()
    try:
        packed = status_pb2.Status.FromString(encoded).details if isinstance(encoded, bytes) else ()
    except ValueError:
        packed = ()
    for each in packed:
        _ = each.Unpack(info) or each.Unpack(bad)
    return info, [FieldViolation(each.field, each.description) for each in bad.field_violations]


def _seconds(value: Any) -> float | None:
    return int(value) / 1000 if isinstance(value, str) and value.isascii() and value.isdigit() else None
