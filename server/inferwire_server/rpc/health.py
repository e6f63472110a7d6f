"""grpc.health.v1, with the services that probes ask for by name.

The servicer is ours because the one in grpcio-health-checking forgets all watchers of a service when one leaves,
and holds a lock over each write, so that one slow watcher delays the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

STARTUP = "startup"
READINESS = "readiness"
LIVENESS = "liveness"

Context = grpc.aio.ServicerContext[Any, Any]
_SERVING = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
_UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN


class Health(health_pb2_grpc.HealthServicer):  # type: ignore[misc]
    """`startup` turns once the model is warm, `readiness` and all services follow the server's state,
    `liveness` is down only when the process should be restarted. Starts as not started, not ready, alive."""

    def __init__(self, services: Iterable[str]) -> None:
        self._ready_names = ("", READINESS, *services)
        self._serving = {STARTUP: False, LIVENESS: True} | dict.fromkeys(self._ready_names, False)
        self._changed: asyncio.Event = asyncio.Event()
        self._is_closed = False

    @property
    def is_ready(self) -> bool:
        return self._serving[READINESS]

    @property
    def has_started(self) -> bool:
        return self._serving[STARTUP]

    def started(self) -> None:
        """The model is warm."""
        self._show({STARTUP: True})

    def ready(self, is_ready: bool) -> None:
        """Watchers hear of changes only."""
        self._show(dict.fromkeys(self._ready_names, is_ready))

    def close(self) -> None:
        """End every Watch, so that none delays the end of the server."""
        self._is_closed = True
        self._wake()

    def alive(self, is_alive: bool) -> None:
        """False asks for a restart."""
        self._show({LIVENESS: is_alive})

    async def Check(self, request: health_pb2.HealthCheckRequest, context: Context) -> health_pb2.HealthCheckResponse:
        """NOT_FOUND for a name that is not known, as the protocol asks."""
        if request.service not in self._serving:
            await context.abort(grpc.StatusCode.NOT_FOUND, "no such service")
        return health_pb2.HealthCheckResponse(status=self._status(request.service))

    async def Watch(self, request: health_pb2.HealthCheckRequest, context: Context) -> None:
        """The status now and at each change, until the watcher leaves."""
        shown = None
        while True:
            changed, status = self._changed, self._status(request.service)
            if status != shown:
                shown = status
                await context.write(health_pb2.HealthCheckResponse(status=status))
            elif self._is_closed:
                return
            else:
                await changed.wait()

    def _status(self, service: str) -> health_pb2.HealthCheckResponse.ServingStatus.ValueType:
        serving = self._serving.get(service)
        return _UNKNOWN if serving is None else _SERVING if serving else _NOT_SERVING

    def _show(self, states: dict[str, bool]) -> None:
        if any(self._serving[name] is not value for name, value in states.items()):
            self._serving |= states
            self._wake()

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
