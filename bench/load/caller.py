"""One call and what became of it. Whatever goes wrong is an outcome, never an exception."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import grpc
from google.rpc import error_details_pb2, status_pb2
from inferwire.v1 import generation_pb2, inference_pb2_grpc

from bench.load.schedule import Shot

COMPLETED = "COMPLETED"
HUNG_UP = "HUNG_UP"
CLIENT_FAILURE = "CLIENT_FAILURE"


@dataclass(slots=True, kw_only=True)
class Record:
    """Times are seconds after the start of the run."""

    shot: Shot
    sent_at: float = 0.0
    first_token_at: float | None = None
    ended_at: float = 0.0
    output_tokens: int = 0
    gaps_s: list[float] = field(default_factory=list)
    """Between two messages with tokens, divided by the tokens of the later one."""
    outcome: str = CLIENT_FAILURE
    """COMPLETED, HUNG_UP, a status code and the server's reason, or CLIENT_FAILURE and the exception."""
    retry_hint_s: float | None = None

    @property
    def is_served(self) -> bool:
        """Whether the caller got all that it wanted."""
        return self.outcome in (COMPLETED, HUNG_UP)

    @property
    def first_token_s(self) -> float | None:
        """From the intended arrival."""
        return None if self.first_token_at is None else self.first_token_at - self.shot.at_s


@dataclass(frozen=True, slots=True, kw_only=True)
class CallOptions:
    """What every call has in common."""

    model: str
    seed: int
    max_output_tokens: int
    first_token_target_s: float | None
    priority: generation_pb2.Priority.ValueType
    tenant: str


class Caller:
    """Makes calls on one channel."""

    def __init__(self, channel: grpc.aio.Channel, options: CallOptions) -> None:
        self._stub = inference_pb2_grpc.InferenceServiceStub(channel)
        self._options = options
        self._metadata = (("x-inferwire-tenant", options.tenant),) if options.tenant else ()

    async def call(self, shot: Shot, clock: Callable[[], float]) -> Record:
        """`clock` counts seconds from the start of the run."""
        record = Record(shot=shot)
        try:
            request = self._request(shot)
            record.sent_at = clock()
            await self._read(record, request, clock)
        except grpc.aio.AioRpcError as error:
            record.outcome = "/".join(part for part in (error.code().name, _reason(error)) if part)
            record.retry_hint_s = _retry_hint_s(error)
        except Exception as error:  # noqa: BLE001 - one caller's fault must not end the others' run
            record.outcome = f"{CLIENT_FAILURE}/{type(error).__name__}"
        record.ended_at = clock()
        return record

    def _request(self, shot: Shot) -> generation_pb2.GenerateRequest:
        options = self._options
        request = generation_pb2.GenerateRequest(model=options.model, max_output_tokens=options.max_output_tokens)
        request.token_ids.ids.extend(shot.prompt(options.seed))
        request.sampling.seed = shot.number
        request.scheduling.priority = options.priority
        if options.first_token_target_s is not None:
            request.scheduling.first_token_target.FromTimedelta(timedelta(seconds=options.first_token_target_s))
        return request

    async def _read(self, record: Record, request: generation_pb2.GenerateRequest, clock: Callable[[], float]) -> None:
        wanted = record.shot.leaves_after_tokens
        last_at: float | None = None
        stream: Any = self._stub.StreamGenerate(request, timeout=record.shot.deadline_s, metadata=self._metadata)
        async for event in stream:
            if event.WhichOneof("event") == "completed":
                record.outcome = COMPLETED
            elif event.WhichOneof("event") == "delta" and event.delta.token_count:
                now = clock()
                if last_at is None:
                    record.first_token_at = now
                else:
                    record.gaps_s.append((now - last_at) / event.delta.token_count)
                last_at = now
                record.output_tokens += event.delta.token_count
                if wanted is not None and record.output_tokens >= wanted:
                    stream.cancel()
                    record.outcome = HUNG_UP
                    return
        if record.outcome != COMPLETED:
            record.outcome = f"{CLIENT_FAILURE}/stream ended without Completed"


def since(start: float) -> Callable[[], float]:
    """Seconds since a reading of time.perf_counter."""
    return lambda: time.perf_counter() - start


def _reason(error: grpc.aio.AioRpcError) -> str:
    encoded = dict(error.trailing_metadata() or ()).get("grpc-status-details-bin")
    info = error_details_pb2.ErrorInfo()
    for detail in status_pb2.Status.FromString(encoded).details if encoded else ():
        if detail.Unpack(info):
            return str(info.reason)
    return ""


def _retry_hint_s(error: grpc.aio.AioRpcError) -> float | None:
    pushback_ms = dict(error.trailing_metadata() or ()).get("grpc-retry-pushback-ms")
    return None if pushback_ms is None else int(pushback_ms) / 1000.0
