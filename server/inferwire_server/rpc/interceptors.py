"""One interceptor around every call: caller, deadline, parsing, the status table, one access log line."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any, NoReturn, Protocol

import grpc
import structlog
from google.protobuf.message import DecodeError

from inferwire_server.domain.caller import Caller
from inferwire_server.domain.errors import InvalidRequest, ServiceError
from inferwire_server.observability.faults import record_fault
from inferwire_server.rpc.call import CURRENT, Call, Metadata
from inferwire_server.rpc.status import wire_status
from inferwire_server.scheduling.departure import departure

Context = grpc.aio.ServicerContext[Any, Any]
_access = structlog.get_logger("inferwire.access")

TRACE_KEY = "traceparent"
_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(?:-.*)?")
"""https://www.w3.org/TR/trace-context/#traceparent-header; a later version may append to it."""
_HEALTH = "/grpc.health."
_ROUTINE = ("OK", "CANCELLED")
_TYPES = {
    (False, False): "unary",
    (False, True): "server_stream",
    (True, False): "client_stream",
    (True, True): "bidi_stream",
}
_STATUS_SENDING_S = 1.0
"""A status waits behind messages that the caller has not read."""


class MethodObserver(Protocol):
    """Counts the calls of one method and their messages."""

    def started(self) -> None: ...

    def received(self) -> None: ...

    def sent(self) -> None: ...

    def ended(self, code: str, reason: str, seconds: float) -> None: ...


class CallObserver(Protocol):
    """Has an observer for each method."""

    def method(self, path: str, kind: str) -> MethodObserver: ...


class Door(Protocol):
    """Asks who is calling a method, then whether they may. Raises a ServiceError when not."""

    async def identify(self, method: str, metadata: Metadata, context: Context) -> Caller: ...

    def authorise(self, method: str, caller: Caller) -> None: ...


class Audit(Protocol):
    """Keeps a record of finished calls."""

    def ended(self, call: Call, *, code: str, reason: str, error_id: str, seconds: float) -> None: ...


class CallInterceptor(grpc.aio.ServerInterceptor):
    """Wraps every handler, of ours and of the standard services."""

    def __init__(self, door: Door, observer: CallObserver, audit: Audit | None = None) -> None:
        self.latest_call_at = float("-inf")
        """Monotonic seconds."""
        self._door = door
        self._observer = observer
        self._audit = audit
        self._guarded: dict[str, grpc.RpcMethodHandler[Any, Any]] = {}

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """Replace the handler by one that parses, guards and reports; made once for each method."""
        method = handler_call_details.method
        guarded = self._guarded.get(method)
        if guarded is None:
            handler = await continuation(handler_call_details)
            if handler is None:
                return None
            guarded = self._guarded[method] = self._wrap(method, handler)
        return guarded

    def _wrap(self, method: str, handler: Any) -> grpc.RpcMethodHandler[Any, Any]:
        observer = self._observer.method(method, _TYPES[handler.request_streaming, handler.response_streaming])
        parse = partial(_parse, handler.request_deserializer, observer.received)
        read = partial(_each, parse) if handler.request_streaming else parse
        kind = "_".join("stream" if it else "unary" for it in (handler.request_streaming, handler.response_streaming))
        guarded = self._guard(method, getattr(handler, kind), read, observer, is_stream=handler.response_streaming)
        wrap: Callable[..., grpc.RpcMethodHandler[Any, Any]] = getattr(grpc, f"{kind}_rpc_method_handler")
        return wrap(
            guarded,
            request_deserializer=None,
            response_serializer=partial(_encoded, handler.response_serializer, observer.sent),
        )

    def _guard(
        self, method: str, behaviour: Any, read: Callable[[Any], Any], observer: MethodObserver, *, is_stream: bool
    ) -> Callable[[Any, Context], Awaitable[Any]]:
        async def guarded(encoded: Any, context: Context) -> Any:
            metadata: Metadata = dict(context.invocation_metadata() or ())
            call = Call(method=method, arrived_at=time.monotonic(), trace_id=_trace_id(metadata))
            self.latest_call_at = call.arrived_at
            remaining = context.time_remaining()
            if remaining is not None:
                call.deadline = call.arrived_at + remaining
            CURRENT.set(call)
            observer.started()
            try:
                call.caller = await self._door.identify(method, metadata, context)
                self._door.authorise(method, call.caller)
                request = read(encoded)
                if is_stream:
                    await _stream(behaviour, request, context)
                    response = None
                else:
                    response = await behaviour(request, context)
            except ServiceError as error:
                # gRPC keeps the abort, and with it these frames, until the next full collection: not the request.
                encoded = request = error.__traceback__ = None
                await self._fail(call, observer, context, error)
            except asyncio.CancelledError:
                self._report(call, observer, _departure(call))
                raise
            except grpc.aio.InternalError:
                # A write failed: the connection is gone, or gRPC refused the size and has told the caller.
                self._report(call, observer, _departure(call))
                raise asyncio.CancelledError from None
            except grpc.aio.AbortError:
                self._report(call, observer, None, code=_abort_code(context))
                raise
            except Exception as fault:  # noqa: BLE001 the last guard: nothing from inside may reach the caller
                await self._fail(call, observer, context, record_fault(fault))
            self._report(call, observer, None)
            return response

        return guarded

    async def _fail(self, call: Call, observer: MethodObserver, context: Context, error: ServiceError) -> NoReturn:
        self._report(call, observer, error)
        status = wire_status(error)
        try:
            async with asyncio.timeout(_STATUS_SENDING_S):
                await context.abort(status.code, status.message, status.trailers)
        except (TimeoutError, grpc.aio.InternalError):
            # The caller reads nothing or is gone. gRPC keeps the status for it; nothing of ours needs to wait.
            raise asyncio.CancelledError from None
        raise error

    def _report(self, call: Call, observer: MethodObserver, error: ServiceError | None, code: str = "OK") -> None:
        reason = ""
        if error is not None:
            status = wire_status(error)
            code, reason = status.code.name, status.reason
        seconds = time.monotonic() - call.arrived_at
        observer.ended(code, reason, seconds)
        facts = dict(call.facts)
        if call.trace_id:
            facts["trace_id"] = call.trace_id
        error_id = getattr(error, "error_id", "")
        if self._audit is not None:
            self._audit.ended(call, code=code, reason=reason, error_id=error_id, seconds=seconds)
        if error_id:
            facts["error_id"] = error_id
        # Probes come every second or two for as long as the server lives.
        is_routine = call.method.startswith(_HEALTH) and code in _ROUTINE
        log = _access.debug if is_routine else _access.info
        log(
            "call",
            method=call.method,
            tenant=call.caller.tenant,
            code=code,
            reason=reason,
            seconds=round(seconds, 4),
            **facts,
        )


async def _stream(behaviour: Any, request: Any, context: Context) -> None:
    """Handlers either write to the context themselves or yield messages, as the standard ones do."""
    outcome = behaviour(request, context)
    if hasattr(outcome, "__aiter__"):
        async for message in outcome:
            await context.write(message)
    else:
        await outcome


def _parse(parse: Any, received: Callable[[], None], encoded: bytes) -> Any:
    received()
    if parse is None:
        return encoded
    try:
        return parse(encoded)
    except DecodeError:
        raise InvalidRequest("request", "not a valid message of this method's request type") from None


async def _each(parse: Callable[[bytes], Any], encoded: AsyncIterator[bytes]) -> AsyncIterator[Any]:
    async for message in encoded:
        yield parse(message)


def _encoded(serialize: Callable[[Any], bytes], sent: Callable[[], None], message: Any) -> bytes:
    """Handlers may write what is encoded already."""
    sent()
    return message if type(message) is bytes else serialize(message)


def _departure(call: Call) -> ServiceError:
    return departure(now=time.monotonic(), arrived_at=call.arrived_at, deadline=call.deadline)


def _abort_code(context: Context) -> str:
    code = context.code()
    return code.name if isinstance(code, grpc.StatusCode) else "UNKNOWN"


def _trace_id(metadata: Metadata) -> str:
    """The trace id of a W3C traceparent, or nothing."""
    value = metadata.get(TRACE_KEY, "")
    found = _TRACEPARENT.fullmatch(value) if isinstance(value, str) else None
    return found[1] if found else ""
