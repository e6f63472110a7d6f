"""All gRPC wiring: options, registration, health, reflection."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc
from inferwire.v1 import (
    error_pb2,
    inference_pb2,
    inference_pb2_grpc,
    model_pb2,
    model_pb2_grpc,
    operations_pb2,
    operations_pb2_grpc,
)

from inferwire_server.rpc.health import Health
from inferwire_server.security.authorisation import check_complete

SERVICES = tuple(
    service.full_name
    for file in (inference_pb2, model_pb2, operations_pb2)
    for service in file.DESCRIPTOR.services_by_name.values()
)
"""Full names of the services of the contract."""

_ = error_pb2
"""Imported so that reflection can resolve it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Servicers:
    """The handlers of one server."""

    inference: inference_pb2_grpc.InferenceServiceServicer
    models: model_pb2_grpc.ModelServiceServicer
    operations: operations_pb2_grpc.OperationsServiceServicer
    health: Health


def build_server(
    servicers: Servicers,
    interceptors: Sequence[grpc.aio.ServerInterceptor],
    *,
    max_request_bytes: int,
    max_response_bytes: int,
    min_ping_interval_s: float,
    with_reflection: bool,
) -> grpc.aio.Server:
    """A server that is not listening yet. Raises SettingsError for an RPC of which no table says who may call it."""
    options = channel_options(
        max_request_bytes=max_request_bytes,
        max_response_bytes=max_response_bytes,
        min_ping_interval_s=min_ping_interval_s,
    )
    server = grpc.aio.server(interceptors=interceptors, options=options)
    register: Any = Registration(server)
    inference_pb2_grpc.add_InferenceServiceServicer_to_server(servicers.inference, register)
    model_pb2_grpc.add_ModelServiceServicer_to_server(servicers.models, register)
    operations_pb2_grpc.add_OperationsServiceServicer_to_server(servicers.operations, register)
    health_pb2_grpc.add_HealthServicer_to_server(servicers.health, register)
    if with_reflection:
        names = (*SERVICES, health_pb2.DESCRIPTOR.services_by_name["Health"].full_name, reflection.SERVICE_NAME)
        reflection_pb2_grpc.add_ServerReflectionServicer_to_server(reflection.aio.ReflectionServicer(names), register)
    check_complete(register.methods)
    return server


def build_health_server(health: Health, interceptors: Sequence[grpc.aio.ServerInterceptor]) -> grpc.aio.Server:
    """A server of grpc.health.v1 alone."""
    server = grpc.aio.server(interceptors=interceptors, options=[("grpc.so_reuseport", 0)])
    health_pb2_grpc.add_HealthServicer_to_server(health, server)
    return server


class Registration:
    """Passes on what the generated code registers, and remembers its paths."""

    def __init__(self, server: grpc.aio.Server) -> None:
        self.methods: set[str] = set()
        self._server = server

    def add_generic_rpc_handlers(self, handlers: Sequence[grpc.GenericRpcHandler]) -> None:
        self._server.add_generic_rpc_handlers(handlers)

    def add_registered_method_handlers(self, service: str, handlers: Mapping[str, Any]) -> None:
        self.methods |= {f"/{service}/{name}" for name in handlers}
        self._server.add_registered_method_handlers(service, handlers)


def channel_options(
    *, max_request_bytes: int, max_response_bytes: int, min_ping_interval_s: float
) -> list[tuple[str, Any]]:
    """Options of the listening side."""
    return [
        # Two servers on one port would share no sessions and no queue.
        ("grpc.so_reuseport", 0),
        ("grpc.max_receive_message_length", max_request_bytes),
        ("grpc.max_send_message_length", max_response_bytes),
        # The spelling after the C macro (min_recv_ping_interval…) is not read; without this one a client
        # that pings during a long prefill is disconnected with ENHANCE_YOUR_CALM. Half of what is published, for
        # pings sent evenly arrive unevenly.
        ("grpc.http2.min_ping_interval_without_data_ms", round(min_ping_interval_s * 1000 / 2)),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_ping_strikes", 2),
    ]
