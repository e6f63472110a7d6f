"""Who can reach a server, and what it then asks for: settings that leave a door open by mistake are refused."""

from __future__ import annotations

import asyncio
import os
import stat
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from inferwire.v1 import inference_pb2, inference_pb2_grpc, operations_pb2
from inferwire_server.rpc.listening import CannotListen, listen
from inferwire_server.security.exposure import check_exposure, is_insecure, is_local
from inferwire_server.settings import Settings, SettingsError

from tests.secured import Deployment, secured
from tests.server_process import server_process
from tests.serving import MODEL, refusal, request, serving

TLS: dict[str, Any] = {"tls_certificate": Path("a.pem"), "tls_key": Path("a-key.pem")}
KEYS: dict[str, Any] = {"api_keys": Path("keys.json"), "api_keys_secret": Path("keys.secret")}
JWT = {"issuer": "https://issuer.example", "audience": "a"}
RULES: dict[str, Any] = {"tls_client_ca": Path("ca.pem"), "certificates": [{"identity": "CN=a", "tenant": "t"}]}


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.1", "::1", "[::1]", "localhost", "unix:/run/inferwire.sock"])
def test_what_only_this_machine_reaches_needs_nothing(host: str) -> None:
    assert is_local(host)
    check_exposure(Settings(host=host))


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "127.0.0.1.example", "localhost.example", "inferwire"])  # noqa: S104
@pytest.mark.parametrize(
    ("given", "missing"), [({}, "TLS (.*) and a way"), (TLS, "a way"), (KEYS, "TLS")], ids=["nothing", "TLS", "keys"]
)
def test_what_others_reach_needs_tls_and_a_way_to_authenticate(host: str, given: dict[str, Any], missing: str) -> None:
    settings = Settings(host=host, **given)
    with pytest.raises(SettingsError, match=rf"host: .* needs {missing}.*--insecure"):
        check_exposure(settings)
    told = Settings(host=host, insecure=True, **given)
    check_exposure(told)
    assert is_insecure(told)


@pytest.mark.parametrize("way", [KEYS, {"jwt": {**JWT, "jwks": "https://issuer.example/jwks"}}, RULES])
def test_tls_and_any_way_to_authenticate_are_enough(way: dict[str, Any]) -> None:
    settings = Settings(host="0.0.0.0", **TLS, **way)  # noqa: S104
    check_exposure(settings)
    assert not is_insecure(settings)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"tls_certificate": Path("a")}, "tls_certificate: needs tls_key"),
        ({"api_keys_secret": Path("a")}, "api_keys_secret: needs api_keys too"),
        ({"tls_client_ca": Path("a")}, "tls_client_ca: needs tls_certificate"),
        ({"trusted_proxies": ["CN=envoy"]}, "trusted_proxies: needs tls_client_ca"),
        ({"jwt": {**JWT, "jwks": "http://issuer.example/jwks"}}, "jwt.jwks: must be"),
        ({"jwt": {**JWT, "jwks": "file:///etc/passwd"}}, "jwt.jwks: must be"),
        ({"jwt": {**JWT, "jwks": "http://127.0.0.1@issuer.example/jwks"}}, "jwt.jwks: must be"),
    ],
)
def test_settings_that_make_no_sense_together_are_named(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingsError) as caught:
        check_exposure(Settings(**settings))
    assert said in str(caught.value)


@pytest.mark.parametrize("algorithm", ["none", "HS256", "RS1"])
def test_an_algorithm_by_which_whoever_checks_could_sign_is_no_setting(algorithm: str) -> None:
    with pytest.raises(ValueError, match="algorithms"):
        Settings(jwt={**JWT, "jwks": "a", "algorithms": [algorithm]})  # type: ignore[arg-type]


async def test_a_server_for_others_does_not_start_unless_it_is_told_to_be_insecure_and_then_says_so() -> None:
    async with server_process(until="", host="0.0.0.0") as refused:  # noqa: S104
        assert await refused.until_exit() == 2
    assert any("--insecure" in str(line["event"]) for line in refused.log)
    async with server_process(host="0.0.0.0", insecure="true") as server:  # noqa: S104
        await server.until_logged("insecure")
        port = server.address.rpartition(":")[2]
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            ask: Any = channel.unary_unary("/inferwire.v1.OperationsService/GetServerStatus")
            status = operations_pb2.GetServerStatusResponse.FromString(await ask(b""))
    assert status.insecure


async def test_a_socket_file_serves_this_machine_and_nobody_else_may_open_it(tmp_path: Path) -> None:
    path = tmp_path / "inferwire.socket"
    async with serving(host=f"unix:{path}", metrics_enabled=True, metrics_port=0) as server:
        assert server.address == f"unix:{path}"
        reply = await server.inference.Generate(request(), metadata=(("x-inferwire-tenant", "acme"),))
        status = await server.operations.GetServerStatus(operations_pb2.GetServerStatusRequest())
        mode = stat.S_IMODE(os.stat(path).st_mode)
    assert reply.usage.output_tokens == 16
    assert not status.insecure
    assert not mode & stat.S_IWOTH


@pytest.mark.parametrize("slashes", ["", "//"])
async def test_a_socket_in_a_folder_that_is_not_there_is_said_to_be_one(tmp_path: Path, slashes: str) -> None:
    server = grpc.aio.server()
    with pytest.raises(CannotListen, match=rf"there is no folder {tmp_path}/nowhere$"):
        listen(server, f"unix:{slashes}{tmp_path}/nowhere/a.socket", 0, None)


async def test_the_port_for_health_speaks_no_tls_and_serves_nothing_else(tmp_path: Path) -> None:
    deployment = Deployment(tmp_path)
    async with secured(deployment, client_ca=True, health_port=0) as server:
        address = f"127.0.0.1:{server.server.health_port}"
        async with (
            grpc.aio.insecure_channel(address) as channel,
            deployment.channel(server, deployment.client("user")) as inside,
        ):
            served = inference_pb2_grpc.InferenceServiceStub(inside)
            await served.Generate(request(max_output_tokens=1))
            stub = health_pb2_grpc.HealthStub(channel)
            health = await stub.Check(health_pb2.HealthCheckRequest(service="readiness"))
            others = inference_pb2_grpc.InferenceServiceStub(channel)
            refused = [
                await refusal(others.Generate(request())),
                await refusal(others.StreamGenerate(request())),
                await refusal(others.Tokenize(inference_pb2.TokenizeRequest(model=MODEL, prompt="a"))),
            ]
    assert health.status == health_pb2.HealthCheckResponse.SERVING
    assert {error.code() for error in refused} == {grpc.StatusCode.UNIMPLEMENTED}


async def test_a_watcher_of_health_hears_of_a_drain_on_its_own_port() -> None:
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(serving(health_port=0))
        address = f"127.0.0.1:{server.server.health_port}"
        channel = await stack.enter_async_context(grpc.aio.insecure_channel(address))
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service="readiness"))
        first = await watch.read()
        closing = asyncio.create_task(server.server.close())
        second = await watch.read()
        await closing
    assert first.status == health_pb2.HealthCheckResponse.SERVING
    assert second.status == health_pb2.HealthCheckResponse.NOT_SERVING
