"""What a fake server does with one call, and how a status of the service looks on the wire."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any
from zlib import crc32

import grpc
from google.protobuf import any_pb2
from google.rpc import error_details_pb2, status_pb2

from inferwire.errors import Code, Reason
from inferwire.v1 import generation_pb2

MODEL = "fake"
_STATUS = "grpc-status-details-bin"
_CODES = {
    Reason.INVALID_FIELD: Code.INVALID_ARGUMENT,
    Reason.MODEL_NOT_FOUND: Code.NOT_FOUND,
    Reason.CAPABILITY_ABSENT: Code.UNIMPLEMENTED,
    Reason.MODEL_MISMATCH: Code.FAILED_PRECONDITION,
    Reason.OVERLOADED: Code.RESOURCE_EXHAUSTED,
    Reason.QUOTA: Code.RESOURCE_EXHAUSTED,
    Reason.WOULD_EXCEED: Code.DEADLINE_EXCEEDED,
    Reason.EXPIRED: Code.DEADLINE_EXCEEDED,
    Reason.DRAINING: Code.UNAVAILABLE,
    Reason.STARTING: Code.UNAVAILABLE,
    Reason.ENGINE_DOWN: Code.UNAVAILABLE,
    Reason.FENCED: Code.ABORTED,
    Reason.RESUME_LOST: Code.ABORTED,
    Reason.READER_STALLED: Code.ABORTED,
    Reason.CANCELLED_BY_OPERATOR: Code.ABORTED,
    Reason.KEY_CONFLICT: Code.ALREADY_EXISTS,
    Reason.GENERATION_NOT_FOUND: Code.NOT_FOUND,
    Reason.UNAUTHENTICATED: Code.UNAUTHENTICATED,
    Reason.FORBIDDEN: Code.PERMISSION_DENIED,
    Reason.INTERNAL: Code.INTERNAL,
}


@dataclass(frozen=True, slots=True)
class Refusal:
    """A status as the service sends it: a reason, a retry hint where `hint_s` is given, and whether it had begun."""

    reason: Reason | str
    hint_s: float | None = None
    started: bool | None = None
    """None: as the stream has shown Started or not."""
    message: str = "refused as scripted"
    code: Code | None = None
    """None: the reason's own."""


@dataclass(frozen=True, slots=True)
class BareStatus:
    """A status without the service's details, as gRPC itself and proxies send it."""

    code: Code
    message: str = "failed as scripted"
    pushback_ms: str | None = None
    """The trailer `grpc-retry-pushback-ms`."""


RESET = BareStatus(Code.UNAVAILABLE, "Socket closed")
"""What a client sees of a server that was killed."""
PROXY_RESET = BareStatus(Code.INTERNAL, "Received RST_STREAM with error code 2")
"""What a client sees of it through a proxy."""


@dataclass(frozen=True, slots=True)
class Silence:
    """Nothing for some seconds, or until the call is cancelled; then the script goes on."""

    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Truncation:
    """The stream ends with OK but without Completed."""


Mishap = Refusal | BareStatus | Silence | Truncation


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """What one call gets. Unary calls get the same as a stream, at its end."""

    tokens: Sequence[str] = ("Hello", ",", " world", "!")
    """The text of each token. Equal texts have equal ids, so that another server can go on with them."""
    first_token_delay_s: float = 0.0
    """Between Started and the first token; Progress is sent meanwhile where it was asked for."""
    token_delay_s: float = 0.0
    """Between two tokens."""
    mishap: Mishap | None = None
    after_tokens: int | None = None
    """Where `mishap` comes: after so many tokens of the whole output; 0 is after Started, None before it."""
    fingerprint: str = "fake-fingerprint"
    first_offset: int = 0
    """Added to the offset of the first delta: a server that skips tokens, or with a negative one repeats them."""


async def play(script: Script, request: Any, context: Any) -> AsyncIterator[Any]:
    """The events of a generation."""
    event = generation_pb2.StreamGenerateResponse
    if script.after_tokens is None and await happen(script.mishap, context):
        return
    held = request.resume.outputs[0].token_ids if request.resume.outputs else ()
    tokens = script.tokens[: request.max_output_tokens] if request.HasField("max_output_tokens") else script.tokens
    yield event(started=_started(script, request))
    async for progress in _progress(script.first_token_delay_s, request):
        yield progress
    first = max(0, len(held) + min(0, script.first_offset))
    for position in range(first, len(tokens)):
        if position == script.after_tokens and await happen(script.mishap, context, has_started=True):
            return
        offset = position + max(0, script.first_offset)
        delta = generation_pb2.Delta(token_offset=offset, token_count=1, text=tokens[position])
        if request.output.token_ids:
            delta.token_ids.append(token_id(tokens[position]))
        yield event(delta=delta)
        await asyncio.sleep(script.token_delay_s)
    is_last = script.after_tokens is not None and script.after_tokens >= len(tokens)
    if is_last and await happen(script.mishap, context, has_started=True):
        return
    yield event(finished=_finished(script, len(tokens)))
    yield event(completed=generation_pb2.Completed(usage=_usage(len(tokens), len(held))))


def token_id(text: str) -> int:
    """The id that the fake gives a token with this text."""
    return crc32(text.encode()) % 50_000


def _started(script: Script, request: Any) -> generation_pb2.Started:
    return generation_pb2.Started(
        request_id=request.request_id,
        model=request.model or MODEL,
        model_fingerprint=script.fingerprint,
        prompt_tokens=3,
        prompt_digest=b"fake-digest",
        max_output_tokens=request.max_output_tokens,
        seed=request.sampling.seed if request.sampling.HasField("seed") else 7,
        continuation=_continuation(request),
    )


def _continuation(request: Any) -> Any:
    is_resumed = request.HasField("resume")
    return generation_pb2.CONTINUATION_PREFILLED if is_resumed else generation_pb2.CONTINUATION_UNSPECIFIED


def _finished(script: Script, tokens: int) -> generation_pb2.Finished:
    is_cut = tokens < len(script.tokens)
    reason = generation_pb2.FINISH_REASON_LENGTH if is_cut else generation_pb2.FINISH_REASON_STOP
    return generation_pb2.Finished(reason=reason, output_tokens=tokens)


def _usage(tokens: int, resumed: int) -> generation_pb2.Usage:
    return generation_pb2.Usage(prompt_tokens=3, output_tokens=tokens, resumed_tokens=resumed)


async def _progress(seconds: float, request: Any) -> AsyncIterator[Any]:
    interval_s = request.progress_interval.ToTimedelta().total_seconds() if request.HasField("progress_interval") else 0
    ends_at = time.monotonic() + seconds
    while (left_s := ends_at - time.monotonic()) > 0:
        await asyncio.sleep(min(left_s, interval_s or left_s))
        if interval_s:
            yield generation_pb2.StreamGenerateResponse(progress=generation_pb2.Progress())


async def happen(mishap: Mishap | None, context: Any, *, has_started: bool = False) -> bool:
    """Let it happen; whether the stream is over."""
    if mishap is None:
        return False
    if isinstance(mishap, Truncation):
        return True
    if isinstance(mishap, Silence):
        await (asyncio.sleep(mishap.seconds) if mishap.seconds is not None else asyncio.Event().wait())
        return False
    if isinstance(mishap, BareStatus):
        trailers = () if mishap.pushback_ms is None else (("grpc-retry-pushback-ms", mishap.pushback_ms),)
        await context.abort(grpc.StatusCode[mishap.code], mishap.message, trailers)
    else:
        await _refuse(mishap, context, has_started)
    return True


async def _refuse(refusal: Refusal, context: Any, has_started: bool) -> None:
    code = refusal.code or _CODES[Reason(refusal.reason)]
    started = has_started if refusal.started is None else refusal.started
    info = error_details_pb2.ErrorInfo(
        reason=refusal.reason, domain="inferwire", metadata={"started": "true" if started else "false"}
    )
    details = [info]
    trailers: list[tuple[str, str | bytes]] = []
    if refusal.hint_s is not None:
        hint = error_details_pb2.RetryInfo()
        hint.retry_delay.FromMicroseconds(round(refusal.hint_s * 1e6))
        details.append(hint)
        trailers.append(("grpc-retry-pushback-ms", str(round(refusal.hint_s * 1000))))
    packed = [any_pb2.Any() for _ in details]
    for one, detail in zip(packed, details, strict=True):
        one.Pack(detail)
    number = grpc.StatusCode[code].value[0]
    status = status_pb2.Status(code=number, message=refusal.message, details=packed)
    trailers.append((_STATUS, status.SerializeToString()))
    await context.abort(grpc.StatusCode[code], refusal.message, tuple(trailers))
