"""A file that somebody spoilt, however badly: what it said before holds, it is said once, and the next one counts."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from inferwire.v1 import inference_pb2_grpc
from inferwire_server.app.tenancy import Tenancy
from inferwire_server.observability.metrics import Metrics
from inferwire_server.security.api_keys import load_key_ring
from inferwire_server.security.certificates import load_certificates
from inferwire_server.security.development_ca import DevelopmentCa
from inferwire_server.security.key_sets import KeySet
from inferwire_server.security.tenants import load_tenants
from inferwire_server.security.watched_files import WatchedFiles
from inferwire_server.settings import SettingsError
from structlog.testing import capture_logs

from tests.polling import until, until_it_says
from tests.secured import Deployment, bearer, secured
from tests.server_process import server_process
from tests.serving import Serving, request

CA = DevelopmentCa()
SERVER = CA.issue("server", hosts=["localhost"])
P_256, PRIME239V1 = bytes.fromhex("2a8648ce3d030107"), bytes.fromhex("2a8648ce3d030104")
"""Curves by their object identifiers, the second known to hardly anybody."""
MODULES = {
    "breaks_off": "def (\n",
    "lacks_a_variable": "import os\nos.environ['INFERWIRE_TEST_OF_NOTHING']\n",
    "gives_up": "import sys\nsys.exit(3)\n",
}
RELOAD_FAILURES = "inferwire_security_reload_failures_total"
PREFIX = len("iw_000000000000")


def keys_file(expires_at: str | None = None) -> bytes:
    entry = {
        "prefix": "iw_000000000000",
        "hmac_sha256": "00" * 32,
        "tenant": "acme",
        "subject": "backend",
        "roles": ["user"],
        "created_at": "2026-01-01T00:00:00+00:00",
        "expires_at": expires_at,
        "revoked_at": None,
    }
    return json.dumps({"format": 1, "keys": [entry]}).encode()


def on_an_unknown_curve(pem: bytes) -> bytes:
    der = x509.load_pem_x509_certificate(pem).public_bytes(Encoding.DER)
    assert P_256 in der
    return x509.load_der_x509_certificate(der.replace(P_256, PRIME239V1)).public_bytes(Encoding.PEM)


def redacting(path: str) -> bytes:
    return f'[default]\naudit_redactions = ["{path}"]\n'.encode()


def load_current_certificates(contents: Sequence[bytes]) -> object:
    return load_certificates(contents, 0.0)


Load = Callable[[Sequence[bytes]], object]
KEYS: tuple[Load, list[bytes]] = (load_key_ring, [keys_file(), b"0" * 64])
TENANTS: tuple[Load, list[bytes]] = (load_tenants, [b"[default]\nrequests_per_minute = 7\n"])
CERTIFICATES: tuple[Load, list[bytes]] = (load_current_certificates, [SERVER.certificate, SERVER.key])
SPOILT = {
    "a key that ends after the last year": (*KEYS, keys_file("9999-12-31T23:59:59-10:00")),
    "a key that ended before the first year": (*KEYS, keys_file("0001-01-01T00:00:00+14:00")),
    "keys nested without end": (*KEYS, b"[" * 100_000),
    "tenants nested without end": (*TENANTS, b"a=" + b"[" * 100_000),
    "tenants in tables without end": (*TENANTS, b"a=" + b"{a=" * 50_000),
    "a redaction relative to nothing": (*TENANTS, redacting(".module:f")),
    "a redaction that is no Python": (*TENANTS, redacting("breaks_off:f")),
    "a redaction that fails": (*TENANTS, redacting("lacks_a_variable:f")),
    "a redaction that ends the process": (*TENANTS, redacting("gives_up:f")),
    "a certificate on an unknown curve": (*CERTIFICATES, on_an_unknown_curve(SERVER.certificate)),
}


@pytest.fixture(autouse=True)
def modules(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Importable while a test runs."""
    folder = tmp_path_factory.mktemp("modules")
    for name, text in MODULES.items():
        (folder / f"{name}.py").write_text(text)
    sys.path.append(str(folder))
    yield folder
    sys.path.remove(str(folder))


def written(folder: Path, contents: list[bytes]) -> list[Path]:
    paths = [folder / str(number) for number in range(len(contents))]
    for path, content in zip(paths, contents, strict=True):
        path.write_bytes(content)
    return paths


@pytest.mark.parametrize(("load", "good", "bad"), SPOILT.values(), ids=SPOILT)
def test_a_spoilt_file_changes_nothing_is_said_once_and_the_next_one_counts(
    load: Load, good: list[bytes], bad: bytes, tmp_path: Path
) -> None:
    failures: list[str] = []
    paths = written(tmp_path, good)
    with capture_logs() as logs:
        watched = WatchedFiles("kind", paths, load, failures.append)
        before = watched.current
        paths[0].write_bytes(bad)
        assert [watched.refresh() for _ in range(3)] == [False] * 3
        assert watched.current is before
        assert failures == ["kind"]
        paths[0].write_bytes(good[0] + b"\n")
        assert watched.refresh()
        assert not watched.refresh()
    assert watched.current is not before
    assert [line["event"] for line in logs] == ["not reloaded", "reloaded"]


@pytest.mark.parametrize(("load", "good", "bad"), SPOILT.values(), ids=SPOILT)
def test_a_spoilt_file_at_the_start_is_a_wrong_value(load: Load, good: list[bytes], bad: bytes, tmp_path: Path) -> None:
    paths = written(tmp_path, [bad, *good[1:]])
    with pytest.raises(ValueError, match=r"^.{10,200}$"):
        WatchedFiles("kind", paths, load, list[str]().append)


def test_what_nobody_expected_is_told_by_its_kind_alone_and_tried_again(tmp_path: Path) -> None:
    is_well = True

    def load(contents: Sequence[bytes]) -> bytes:
        if not is_well:
            raise LookupError(contents)
        return contents[0]

    (path,) = written(tmp_path, [b"first"])
    failures: list[str] = []
    watched = WatchedFiles("kind", [path], load, failures.append)
    path.write_bytes(b"secret")
    is_well = False
    with capture_logs() as logs:
        assert not watched.refresh()
        assert not watched.refresh()
    assert [line["reason"] for line in logs] == ["cannot be used: LookupError"]
    assert (watched.current, failures) == (b"first", ["kind"])
    is_well = True
    assert watched.refresh()
    assert watched.current == b"secret"


@asynccontextmanager
async def answering(reply: bytes) -> AsyncIterator[str]:
    """The address of something that answers everybody with these bytes."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(reply)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    finally:
        server.close()


@pytest.mark.parametrize(
    "reply",
    [
        b"secret\r\n\r\n",
        b"",
        b"HTTP/1.1 secret OK\r\n\r\n",
        b"HTTP/1.1 999999 secret\r\n\r\n",
        b"HTTP/1.1 500 secret\r\n\r\nsecret",
        b"HTTP/1.1 302 secret\r\nLocation: file:///secret\r\n\r\n",
        b"HTTP/1.1 302 secret\r\nLocation: http://[secret]/\r\n\r\n",
        b'HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{"secret',
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n50\r\nsecret",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nsecret\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"secret" * 20_000 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"X: secret\r\n" * 200 + b"\r\n",
        b"HTTP/1.1 200 OK\r\n\r\n" + b"[" * 100_000,
        b'HTTP/1.1 200 OK\r\n\r\n{"keys": [{"kid": "secret", "kty": "EC", "crv": ["secret"]}]}',
    ],
    ids=range(14),
)
async def test_no_answer_of_an_issuer_fails_the_call_that_looks_for_a_key(reply: bytes) -> None:
    failures: list[str] = []
    async with answering(reply) as address:
        keys = KeySet(address, ["ES256"], refresh_s=300, failed=failures.append)
        with capture_logs() as logs:
            assert await keys.find("one") is None
            assert not await asyncio.to_thread(keys.refresh)
    assert failures == ["jwks"]
    assert [line["event"] for line in logs] == ["not reloaded"]
    assert "secret" not in str(logs)


async def code_of(stub: Any, key: str) -> str:
    outcome = stub.Generate(request(max_output_tokens=1), metadata=bearer(key), timeout=30)
    return str((await outcome.code()).name)


async def until_counted(server: Serving, kind: str, times: int) -> None:
    await until(lambda: server.sample(RELOAD_FAILURES, kind=kind) == times, within_s=20)


async def test_a_key_that_is_revoked_after_a_spoilt_file_is_refused(tmp_path: Path) -> None:
    deployment = Deployment(tmp_path)
    key = deployment.key("user")
    file = tmp_path / "keys.json"
    async with secured(deployment) as server, deployment.channel(server) as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        assert await code_of(stub, key) == "OK"
        whole = file.read_bytes()
        file.write_bytes(keys_file("9999-12-31T23:59:59-10:00"))
        await until_counted(server, "api_keys", 1)
        assert await code_of(stub, key) == "OK"
        file.write_bytes(whole)
        deployment.keys.revoke(key[:PREFIX], now=datetime.now(UTC))
        await until_it_says("UNAUTHENTICATED", lambda: code_of(stub, key))


async def test_limits_that_come_after_spoilt_files_hold(tmp_path: Path) -> None:
    deployment = Deployment(tmp_path)
    key = deployment.key("user")
    file = tmp_path / "tenants.toml"
    file.write_text("")
    async with secured(deployment, tenants=file) as server, deployment.channel(server) as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        for times, bad in enumerate([b"a=" + b"[" * 100_000, redacting(".module:f"), redacting("gives_up:f")], 1):
            file.write_bytes(bad)
            await until_counted(server, "tenants", times)
        assert await code_of(stub, key) == "OK"
        file.write_text("[default]\nrequests_per_minute = 0")
        await until_it_says("RESOURCE_EXHAUSTED", lambda: code_of(stub, key))


def test_tenants_nested_without_end_are_an_error_of_the_settings(tmp_path: Path) -> None:
    (file,) = written(tmp_path, [b"a=" + b"[" * 100_000])
    with pytest.raises(SettingsError, match=r"^tenants: .*: nested too deeply$"):
        Tenancy(file, Metrics("m@1", codes=(), reasons=()))


async def test_a_server_whose_redaction_ends_processes_says_so_and_does_not_start(
    tmp_path: Path, modules: Path
) -> None:
    (file,) = written(tmp_path, [redacting("gives_up:f")])
    async with server_process(until="", packages=modules, tenants=file) as server:
        assert await server.until_exit() == 2
    assert "default.audit_redactions: 'gives_up:f'" in str(server.log[-1]["event"])
    assert "SystemExit" in str(server.log[-1]["event"])
