"""The client at servers that ask who calls: TLS, its own certificate, credentials; each renewed while it runs."""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from inferwire import AsyncClient, Client, ClientConfig, InferwireError, Token
from inferwire.client import TextStream
from inferwire.errors import Forbidden, LocalReason, Unauthenticated
from inferwire.settings_reader import SettingsError

from tests.held_engine import held_engine
from tests.polling import until_it_says
from tests.secured import Deployment, secured
from tests.serving import Serving

TOKENS = 40
NOWHERE = "127.0.0.1:1"


def config_for(server: Serving, folder: Path, *, own: bool = False, address: str = "", **tls: Any) -> ClientConfig:
    """Trusts the CA; with `own` it shows the certificate in client.pem."""
    files = {"certificate_file": str(folder / "client.pem"), "key_file": str(folder / "client-key.pem")} if own else {}
    return ClientConfig.from_dict(
        {
            "regions": [{"name": "here", "endpoints": [address or server.address]}],
            "tls": {"enabled": True, "ca_file": str(folder / "ca.pem"), **files, **tls},
        }
    )


async def drained(stream: TextStream) -> int:
    """Tokens that a stream gave, to its end."""
    return sum([chunk.token_count async for chunk in stream])


async def test_a_key_goes_with_every_call_also_after_a_failure(tmp_path: Path) -> None:
    deployment = Deployment(tmp_path)
    key = deployment.key("user")
    async with secured(deployment) as server:
        config = config_for(server, tmp_path)
        nearer = {"name": "gone", "endpoints": [NOWHERE], "priority": 0}
        both = ClientConfig.from_dict(
            {
                "regions": [nearer, {"name": "here", "endpoints": [server.address], "priority": 1}],
                "tls": {"enabled": True, "ca_file": str(tmp_path / "ca.pem")},
            }
        )
        for each in (config, both):
            async with AsyncClient(each, credential=key) as client:
                assert (await client.generate("hi", max_output_tokens=4)).output_tokens == 4
                assert await drained(client.stream("hi", max_output_tokens=8)) == 8
                with pytest.raises(Forbidden):
                    await client.status()
        async with AsyncClient(config) as nobody:
            with pytest.raises(Unauthenticated, match="a credential is required"):
                await nobody.generate("hi", model="scripted")


async def test_the_client_without_asyncio_speaks_tls_and_sends_what_a_file_holds(tmp_path: Path) -> None:
    deployment = Deployment(tmp_path)
    (tmp_path / "credential").write_text(deployment.key("user") + "\n")
    async with secured(deployment) as server:
        config = config_for(server, tmp_path).with_changes(credential_file=str(tmp_path / "credential"))

        def work() -> int:
            with Client(config) as client:
                return client.generate("hi", max_output_tokens=4).output_tokens

        assert await asyncio.to_thread(work) == 4


async def test_a_name_is_what_the_certificate_has_to_be_for_not_the_address_it_resolves_to(tmp_path: Path) -> None:
    deployment = Deployment(tmp_path)
    deployment.ca.issue("server", hosts=["localhost"]).write(tmp_path, "server")
    key = deployment.key("user")
    async with secured(deployment) as server:
        port = server.server.port
        named = config_for(server, tmp_path, address=f"localhost:{port}")
        told = config_for(server, tmp_path, server_name="localhost")
        for each in (named, told):
            async with AsyncClient(each, credential=key) as client:
                await client.generate("hi", max_output_tokens=1)
        async with AsyncClient(config_for(server, tmp_path, server_name="another"), credential=key) as client:
            with pytest.raises(InferwireError) as caught:
                await client.generate("hi", model="scripted")
    assert caught.value.code == "UNAVAILABLE"


@pytest.mark.case("H23")
async def test_a_replaced_certificate_of_the_client_is_used_next_and_calls_under_way_finish(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    deployment = Deployment(tmp_path)
    deployment.client("user").write(tmp_path, "client")
    async with AsyncExitStack() as stack:
        held = await stack.enter_async_context(held_engine())
        server = await stack.enter_async_context(secured(deployment, client_ca=True, engine=held.engine))
        client = await stack.enter_async_context(AsyncClient(config_for(server, tmp_path, own=True)))
        stream = client.stream("tell a story", max_output_tokens=TOKENS)
        first = await anext(stream)
        held.is_held = True

        async def may_operate() -> bool:
            try:
                await client.status(timeout_s=20)
            except Forbidden:
                return False
            return True

        assert not await may_operate()
        whole = (tmp_path / "client.pem").read_bytes()
        with caplog.at_level(logging.WARNING, logger="inferwire.client"):
            (tmp_path / "client.pem").write_bytes(whole[:200])
            await until_it_says(True, lambda: _said("cannot be used", caplog))
        assert not await may_operate()
        deployment.client("operator").write(tmp_path, "client")
        await until_it_says(True, may_operate)
        held.is_held = False
        assert first.token_count + await drained(stream) == TOKENS


async def _said(words: str, log: pytest.LogCaptureFixture) -> bool:
    return words in log.text


async def test_a_ca_is_changed_for_another_without_a_new_client(tmp_path: Path) -> None:
    deployment = Deployment(tmp_path)
    key = deployment.key("user")
    async with secured(deployment) as server, AsyncClient(config_for(server, tmp_path), credential=key) as client:
        await client.generate("hi", max_output_tokens=1)
        other = Deployment(_made(tmp_path / "other"))
        for name in ("ca.pem", "server.pem", "server-key.pem"):
            (tmp_path / name).write_bytes((other.folder / name).read_bytes())
        async with AsyncClient(config_for(server, tmp_path), credential=key) as fresh:

            async def reaches(one: AsyncClient) -> bool:
                try:
                    await one.generate("hi", model="scripted", max_output_tokens=1)
                except InferwireError:
                    return False
                return True

            await until_it_says(True, lambda: reaches(fresh))
            await until_it_says(True, lambda: reaches(client))


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


async def test_a_function_is_asked_once_for_all_calls_that_need_its_token(tmp_path: Path) -> None:
    deployment = Deployment(tmp_path)
    asked: list[None] = []

    def fetch() -> Token:
        asked.append(None)
        return Token(deployment.issuer.token(), expires_at=None)

    async with secured(deployment) as server, AsyncClient(config_for(server, tmp_path), credential=fetch) as client:
        await asyncio.gather(*[client.generate("hi", model="scripted", max_output_tokens=1) for _ in range(20)])
    assert len(asked) == 1


async def test_where_no_credential_can_be_had_the_call_fails_here_and_says_why(tmp_path: Path) -> None:
    def fetch() -> Token:
        raise RuntimeError("my secret is abc")

    deployment = Deployment(tmp_path)
    async with secured(deployment) as server:
        for source in (fetch, tmp_path / "absent"):
            async with AsyncClient(config_for(server, tmp_path), credential=source) as client:
                with pytest.raises(Unauthenticated) as caught:
                    await client.generate("hi", model="scripted")
                assert caught.value.reason == LocalReason.NO_CREDENTIAL
                assert "abc" not in str(caught.value)


@pytest.mark.parametrize(
    "address", ["10.0.0.1:50051", "inferwire.eu.svc:50051", "dns:///localhost.example:50051", "[2001:db8::1]:1"]
)
def test_a_credential_never_goes_to_another_machine_in_plaintext(address: str) -> None:
    with pytest.raises(SettingsError, match=r"tls\.enabled"):
        AsyncClient(address, credential="iw_secret")
    with pytest.raises(SettingsError, match=r"tls\.enabled"):
        AsyncClient(ClientConfig.for_address(address, credential_file="/run/secrets/key"))
    AsyncClient(address)


@pytest.mark.parametrize(
    "address", ["127.0.0.1:50051", "localhost:50051", "dns:///localhost:1", "[::1]:1", "unix:/run/a"]
)
def test_on_this_machine_it_may(address: str) -> None:
    AsyncClient(address, credential="iw_secret")


def test_tls_is_set_by_the_environment_as_everything_else() -> None:
    config = ClientConfig.from_env(
        {
            "INFERWIRE_CLIENT_REGIONS": "eu=10.0.0.1:1",
            "INFERWIRE_CLIENT_TLS_ENABLED": "true",
            "INFERWIRE_CLIENT_TLS_CA_FILE": "/ca.pem",
            "INFERWIRE_CLIENT_CREDENTIAL_FILE": "/run/secrets/key",
        }
    )
    assert (config.tls.enabled, config.tls.ca_file, config.credential_file) == (True, "/ca.pem", "/run/secrets/key")


@pytest.mark.parametrize(
    ("tls", "said"),
    [
        ({"ca_file": "a"}, r"tls\.ca_file: has no effect"),
        ({"enabled": True, "key_file": "a"}, r"tls\.certificate_file: needed"),
        ({"enabled": True, "certificate": "a"}, "no such setting"),
    ],
)
def test_settings_that_would_do_nothing_are_refused(tls: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        ClientConfig.from_dict({"regions": [{"name": "a", "endpoints": ["a:1"]}], "tls": tls})


async def test_files_that_cannot_be_used_are_named_at_the_first_call(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("no PEM")
    for name, said in (("absent.pem", "cannot be read"), ("ca.pem", "no PEM of certificates")):
        tls = {"enabled": True, "ca_file": str(tmp_path / name)}
        config = ClientConfig.from_dict({"regions": [{"name": "a", "endpoints": [NOWHERE]}], "tls": tls})
        async with AsyncClient(config) as client:
            with pytest.raises(SettingsError, match=said):
                await client.generate("hi", model="scripted")
