"""OperationsService: watching and steering one server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import grpc
from google.protobuf.timestamp_pb2 import Timestamp
from inferwire.v1 import generation_pb2, operations_pb2, operations_pb2_grpc

from inferwire_server.domain.engine import Engine
from inferwire_server.domain.errors import CancelledByOperator, InvalidRequest
from inferwire_server.domain.limits import LIMITS
from inferwire_server.rpc.call import current_call
from inferwire_server.rpc.translate import seconds
from inferwire_server.scheduling.lifecycle import Lifecycle
from inferwire_server.scheduling.load_report import LoadReport, LoadReporter
from inferwire_server.scheduling.sessions import Sessions

Context = grpc.aio.ServicerContext[Any, Any]

_DEFAULT_PAGE = 100


class OperationsServicer(operations_pb2_grpc.OperationsServiceServicer):
    """For operators."""

    def __init__(
        self,
        sessions: Sessions,
        lifecycle: Lifecycle,
        engine: Engine,
        reporter: LoadReporter,
        *,
        started_at: float,
        is_insecure: bool,
        drain: Callable[[float | None], None],
    ) -> None:
        """`started_at` is seconds since the epoch; `drain` takes a limit in seconds, None for the setting."""
        self._sessions = sessions
        self._lifecycle = lifecycle
        self._engine = engine
        self._reporter = reporter
        self._started_at = Timestamp()
        self._started_at.FromNanoseconds(round(started_at * 1e9))
        self._is_insecure = is_insecure
        self._drain = drain

    async def GetServerStatus(
        self, request: operations_pb2.GetServerStatusRequest, context: Context
    ) -> operations_pb2.GetServerStatusResponse:
        """State, load, engine."""
        health = self._engine.health()
        response = operations_pb2.GetServerStatusResponse(
            state=operations_pb2.ServerState.ValueType(self._lifecycle.state),
            started_at=self._started_at,
            reason=self._lifecycle.reason(),
            engine_state=operations_pb2.EngineState.ValueType(health.state),
            engine_restarts=health.restarts,
            insecure=self._is_insecure,
        )
        _fill_load(response.load, self._reporter.report())
        return response

    async def WatchLoad(  # type: ignore[override]
        self, request: operations_pb2.WatchLoadRequest, context: Context
    ) -> None:
        """A report now and each interval, until the watcher leaves."""
        interval = 1.0
        if request.HasField("interval"):
            interval = seconds(request.interval, "interval")
            if not 0.1 <= interval <= 60:
                raise InvalidRequest("interval", "must be 0.1 to 60 s")
        while True:
            response = operations_pb2.WatchLoadResponse()
            _fill_load(response.load, self._reporter.report())
            await context.write(response)
            await asyncio.sleep(interval)

    async def Drain(self, request: operations_pb2.DrainRequest, context: Context) -> operations_pb2.DrainResponse:
        """Begins at once; the process ends when running work has."""
        limit = seconds(request.limit, "limit") if request.HasField("limit") else None
        if limit is not None and not 0 <= limit <= LIMITS.duration_s:
            raise InvalidRequest("limit", f"must be 0 to {LIMITS.duration_s:g} s")
        running = self._sessions.num_live
        self._drain(limit)
        return operations_pb2.DrainResponse(running=running)

    async def ListGenerations(
        self, request: operations_pb2.ListGenerationsRequest, context: Context
    ) -> operations_pb2.ListGenerationsResponse:
        """Pages by number of arrival, so that ends and arrivals between pages skip and repeat nothing."""
        if request.page_size > LIMITS.page_size:
            raise InvalidRequest("page_size", f"at most {LIMITS.page_size}", limit=LIMITS.page_size)
        size = request.page_size or _DEFAULT_PAGE
        after = _page_number(request.page_token)
        response = operations_pb2.ListGenerationsResponse()
        last = 0
        for number, session in self._sessions.numbered():
            if number <= after:
                continue
            if len(response.generations) == size:
                response.next_page_token = str(last)
                break
            last = number
            generation = session.generation
            response.generations.add(
                request_id=generation.request_id,
                tenant=session.caller.tenant,
                model=generation.model,
                priority=generation_pb2.Priority.ValueType(generation.scheduling.priority),
            )
        return response

    async def CancelGeneration(
        self, request: operations_pb2.CancelGenerationRequest, context: Context
    ) -> operations_pb2.CancelGenerationResponse:
        """Its readers get CANCELLED_BY_OPERATOR."""
        for field in ("request_id", "tenant"):
            if not getattr(request, field):
                raise InvalidRequest(field, "required")
        self._sessions.cancel(
            request.tenant, request.request_id, CancelledByOperator("an operator ended this generation")
        )
        current_call().facts.update(request_id=request.request_id, of_tenant=request.tenant)
        return operations_pb2.CancelGenerationResponse()


def _page_number(token: str) -> int:
    if not token:
        return 0
    if not token.isascii() or not token.isdigit() or len(token) > 18:
        raise InvalidRequest("page_token", "not a token that this server has given")
    return int(token)


def _fill_load(target: operations_pb2.Load, report: LoadReport) -> None:
    target.running = report.running
    target.waiting = report.waiting
    if report.kv_utilization is not None:
        target.kv_utilization = report.kv_utilization
    if report.batch_size is not None:
        target.batch_size = report.batch_size
    target.output_tokens_per_second = report.output_tokens_per_second
    target.prompt_tokens_per_second = report.prompt_tokens_per_second
    for tenant in report.tenants:
        target.tenants.add(
            tenant=tenant.tenant,
            running=tenant.running,
            waiting=tenant.waiting,
            tokens_per_second=tenant.tokens_per_second,
        )
