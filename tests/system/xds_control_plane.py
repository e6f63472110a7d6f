"""A control plane for proxyless gRPC, as small as can be: one listener, route, cluster and set of servers, by ADS."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
from envoy.config.cluster.v3 import cluster_pb2
from envoy.config.core.v3 import address_pb2, config_source_pb2
from envoy.config.endpoint.v3 import endpoint_pb2
from envoy.config.listener.v3 import listener_pb2
from envoy.config.route.v3 import route_pb2
from envoy.extensions.filters.http.router.v3 import router_pb2
from envoy.extensions.filters.network.http_connection_manager.v3 import http_connection_manager_pb2
from envoy.service.discovery.v3 import ads_pb2_grpc, discovery_pb2
from google.protobuf import any_pb2

NAME = "llm"
"""What callers name: `xds:///llm`. The route, the cluster and its servers are called the same."""


class ControlPlane(ads_pb2_grpc.AggregatedDiscoveryServiceServicer):  # type: ignore[misc]
    """Says the same to every client."""

    def __init__(self, regions: Sequence[Sequence[str]]) -> None:
        """Servers as `host:port`, nearest region first."""
        resources = (_listener(), _route(), _cluster(), _servers(regions))
        self._resources = {packed.type_url: packed for packed in map(_packed, resources)}

    async def StreamAggregatedResources(  # noqa: N802
        self, requests: AsyncIterator[Any], context: Any
    ) -> AsyncIterator[discovery_pb2.DiscoveryResponse]:
        """One answer for each kind that is asked for; what follows only acknowledges it."""
        answered = set()
        async for request in requests:
            if request.HasField("error_detail"):
                raise AssertionError(f"the client refuses {request.type_url}: {request.error_detail.message}")
            kind = request.type_url
            if kind not in answered:
                answered.add(kind)
                yield discovery_pb2.DiscoveryResponse(
                    version_info="1", nonce="1", type_url=kind, resources=[self._resources[kind]]
                )


@asynccontextmanager
async def control_plane(regions: Sequence[Sequence[str]]) -> AsyncIterator[str]:
    """Run one; its address."""
    server = grpc.aio.server()
    ads_pb2_grpc.add_AggregatedDiscoveryServiceServicer_to_server(ControlPlane(regions), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


def bootstrap_of(folder: Path, address: str) -> Path:
    """A file for GRPC_XDS_BOOTSTRAP to name: where the control plane is."""
    file = folder / "bootstrap.json"
    server = {"server_uri": address, "channel_creds": [{"type": "insecure"}], "server_features": ["xds_v3"]}
    file.write_text(json.dumps({"xds_servers": [server], "node": {"id": "a-test"}}))
    return file


def _packed(message: Any) -> any_pb2.Any:
    packed = any_pb2.Any()
    packed.Pack(message)
    return packed


def _by_ads() -> config_source_pb2.ConfigSource:
    return config_source_pb2.ConfigSource(
        ads=config_source_pb2.AggregatedConfigSource(), resource_api_version=config_source_pb2.ApiVersion.V3
    )


def _listener() -> listener_pb2.Listener:
    manager = http_connection_manager_pb2.HttpConnectionManager(
        rds=http_connection_manager_pb2.Rds(config_source=_by_ads(), route_config_name=NAME),
        http_filters=[
            http_connection_manager_pb2.HttpFilter(name="router", typed_config=_packed(router_pb2.Router())),
        ],
    )
    return listener_pb2.Listener(name=NAME, api_listener={"api_listener": _packed(manager)})


def _route() -> route_pb2.RouteConfiguration:
    to_cluster = {"match": {"prefix": ""}, "route": {"cluster": NAME}}
    host = {"name": NAME, "domains": ["*"], "routes": [to_cluster]}
    return route_pb2.RouteConfiguration(name=NAME, virtual_hosts=[host])


def _cluster() -> cluster_pb2.Cluster:
    return cluster_pb2.Cluster(name=NAME, type="EDS", eds_cluster_config={"eds_config": _by_ads()})


def _servers(regions: Sequence[Sequence[str]]) -> endpoint_pb2.ClusterLoadAssignment:
    places = [
        {
            "locality": {"region": f"region-{priority}"},
            "priority": priority,
            "load_balancing_weight": {"value": 1},
            "lb_endpoints": [{"endpoint": {"address": _address(server)}} for server in servers],
        }
        for priority, servers in enumerate(regions)
    ]
    return endpoint_pb2.ClusterLoadAssignment(cluster_name=NAME, endpoints=places)


def _address(server: str) -> address_pb2.Address:
    host, port = server.rsplit(":", 1)
    return address_pb2.Address(socket_address={"address": host, "port_value": int(port)})
