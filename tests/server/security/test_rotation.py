"""Certificates and keys change under a running server: new connections see the new ones, nobody is dropped."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc
import pytest
from cryptography import x509
from inferwire.v1 import inference_pb2, inference_pb2_grpc
from inferwire_server.security.development_ca import DevelopmentCa
from structlog.testing import capture_logs

from tests.held_engine import HeldEngine, held_engine
from tests.polling import until, until_it_says
from tests.secured import Deployment, bearer, secured
from tests.serving import Serving, request, rest_of

STREAMS = 50
CONNECTIONS = 10
TOKENS = 40
PREFIX = len("iw_000000000000")
RELOAD_FAILURES = "inferwire_security_reload_failures_total"
EXPIRY = "inferwire_tls_certificate_expiry_timestamp_seconds"


async def served_serial(server: Serving, deployment: Deployment) -> int:
    """Of the certificate that a new connection is shown."""
    context = ssl.create_default_context(cadata=deployment.ca.certificate.decode())
    context.set_alpn_protocols(["h2"])
    _, writer = await asyncio.open_connection("127.0.0.1", server.server.port, ssl=context)
    shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.transport.abort()
    return x509.load_der_x509_certificate(shown).serial_number


async def until_served(server: Serving, deployment: Deployment, serial: int) -> None:
    await until_it_says(serial, lambda: served_serial(server, deployment))


async def code_of(stub: Any, credential: str = "") -> str:
    metadata = bearer(credential) if credential else ()
    try:
        await stub.GetServerInfo(inference_pb2.GetServerInfoRequest(), metadata=metadata)
    except grpc.aio.AioRpcError as error:
        return error.code().name
    return "OK"


class RunningStream:
    """A stream in the middle of its text."""

    def __init__(self, channel: grpc.aio.Channel, token: str) -> None:
        self._call: Any = inference_pb2_grpc.InferenceServiceStub(channel).StreamGenerate(
            request(max_output_tokens=TOKENS), metadata=bearer(token), timeout=120
        )
        self.tokens = 0
        self.is_complete = False

    async def begin(self) -> None:
        while not self.tokens:
            self._take(await self._call.read())

    async def finish(self) -> None:
        async for event in rest_of(self._call):
            self._take(event)

    def _take(self, event: Any) -> None:
        self.tokens += event.delta.token_count
        self.is_complete = event.HasField("completed")


@asynccontextmanager
async def running_streams(
    deployment: Deployment, streams: int, connections: int
) -> AsyncIterator[tuple[Serving, HeldEngine, list[RunningStream]]]:
    """All have begun, and stand still."""
    async with AsyncExitStack() as stack:
        held = await stack.enter_async_context(held_engine())
        server = await stack.enter_async_context(secured(deployment, engine=held.engine))
        channels = [await stack.enter_async_context(deployment.channel(server)) for _ in range(connections)]
        token = deployment.issuer.token()
        running = [RunningStream(channels[number % connections], token) for number in range(streams)]
        await asyncio.gather(*[stream.begin() for stream in running])
        held.is_held = True
        yield server, held, running


async def test_clients_of_a_new_ca_get_in_once_the_server_has_it(tmp_path: Path) -> None:
    deployment = Deployment(tmp_path)
    new = DevelopmentCa("new CA")
    client = deployment.client("user", ca=new)
    async with secured(deployment, client_ca=True) as server, deployment.channel(server, client) as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        assert await code_of(stub) == "UNAVAILABLE"
        (tmp_path / "ca.pem").write_bytes(deployment.ca.certificate + new.certificate)
        await until_it_says("OK", lambda: code_of(stub))


@pytest.mark.case("H23")
async def test_new_connections_see_the_new_certificate_and_a_broken_one_changes_nothing(tmp_path: Path) -> None:
    deployment = Deployment(tmp_path)
    with capture_logs() as logs:
        await _rotated_under_a_stream(deployment)
    warned = [(line["kind"], line["reason"]) for line in logs if line["event"] == "not reloaded"]
    assert warned == [
        ("certificate", "the certificate is no whole PEM"),
        ("certificate", "the key is not that of the certificate"),
    ]


async def _rotated_under_a_stream(deployment: Deployment) -> None:
    folder = deployment.folder
    async with running_streams(deployment, 1, 1) as (server, held, [stream]):
        first = deployment.server_certificate.serial
        assert await served_serial(server, deployment) == first
        second = deployment.renew()
        await until_served(server, deployment, second.serial)

        (folder / "server.pem").write_bytes(second.certificate[: len(second.certificate) // 2])
        await until(lambda: server.sample(RELOAD_FAILURES, kind="certificate") == 1, within_s=20)
        assert await served_serial(server, deployment) == second.serial
        (folder / "server.pem").write_bytes(deployment.client("another").certificate)
        await until(lambda: server.sample(RELOAD_FAILURES, kind="certificate") == 2, within_s=20)
        assert await served_serial(server, deployment) == second.serial

        held.is_held = False
        await stream.finish()
    assert stream.is_complete
    assert stream.tokens == TOKENS


async def test_certificates_and_an_issuers_keys_rotate_under_fifty_streams_and_none_is_dropped(tmp_path: Path) -> None:
    deployment = Deployment(tmp_path)
    async with running_streams(deployment, STREAMS, CONNECTIONS) as (server, held, running):
        old_token = deployment.issuer.token()
        renewed = deployment.renew()
        deployment.issuer.rotate("second")
        await until_served(server, deployment, renewed.serial)
        async with deployment.channel(server) as channel:
            stub = inference_pb2_grpc.InferenceServiceStub(channel)
            new = stub.StreamGenerate(request(max_output_tokens=1), metadata=bearer(deployment.issuer.token()))
            await until_it_says("UNAUTHENTICATED", lambda: code_of(stub, old_token))
            held.is_held = False
            await asyncio.gather(*[stream.finish() for stream in running])
            assert [event async for event in new][-1].HasField("completed")
        assert [(stream.is_complete, stream.tokens) for stream in running] == [(True, TOKENS)] * STREAMS


async def test_the_end_of_the_certificate_in_use_is_a_metric(tmp_path: Path) -> None:
    deployment = Deployment(tmp_path)
    async with secured(deployment, client_ca=True) as server:
        of_server = server.sample(EXPIRY, certificate="server")
        of_ca = server.sample(EXPIRY, certificate="client_ca")
    leaf = x509.load_pem_x509_certificate(deployment.server_certificate.certificate)
    assert datetime.fromtimestamp(of_server, UTC) == leaf.not_valid_after_utc
    assert of_ca > of_server


async def test_a_key_made_or_revoked_while_the_server_runs_counts_within_moments(tmp_path: Path) -> None:
    deployment = Deployment(tmp_path)
    async with secured(deployment) as server, deployment.channel(server) as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        key = deployment.key("user")
        await until_it_says("OK", lambda: code_of(stub, key))
        deployment.keys.revoke(key[:PREFIX], now=datetime.now(UTC))
        await until_it_says("UNAUTHENTICATED", lambda: code_of(stub, key))


async def test_a_stream_goes_on_to_its_end_when_its_credential_is_revoked(tmp_path: Path) -> None:
    """The policy of docs/security.md: a credential is asked for when a call begins."""
    deployment = Deployment(tmp_path)
    key = deployment.key("user")
    async with (
        held_engine() as held,
        secured(deployment, engine=held.engine) as server,
        deployment.channel(server) as channel,
    ):
        stream = RunningStream(channel, key)
        await stream.begin()
        held.is_held = True
        deployment.keys.revoke(key[:PREFIX], now=datetime.now(UTC))
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        await until_it_says("UNAUTHENTICATED", lambda: code_of(stub, key))
        held.is_held = False
        await stream.finish()
    assert stream.is_complete
