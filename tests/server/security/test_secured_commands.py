"""`inferwire generate`, `chat` and `status` at a server that asks who calls."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path

from click.testing import CliRunner, Result
from inferwire_server.cli import inferwire as command_line
from inferwire_server.security.development_ca import DevelopmentCa

from tests.secured import Deployment, secured
from tests.serving import Serving


async def inferwire(server: Serving, *arguments: str, **variables: str) -> Result:
    """To its end; the server goes on meanwhile."""
    environment = {"INFERWIRE_ADDRESS": server.address} | variables
    return await asyncio.to_thread(CliRunner().invoke, command_line, arguments, env=environment)


async def test_flags_or_variables_say_whom_to_trust_and_what_to_send(tmp_path: Path) -> None:
    deployment = Deployment(tmp_path)
    (tmp_path / "user").write_text(deployment.key("user"))
    (tmp_path / "operator").write_text(deployment.key("operator"))
    ca = str(tmp_path / "ca.pem")
    async with secured(deployment) as server:
        flags = ("--tls-ca", ca, "--credential-file", str(tmp_path / "user"))
        generated = await inferwire(server, "generate", "hi", "-n", "4", *flags)
        variables = {"INFERWIRE_CLIENT_TLS_CA_FILE": ca, "INFERWIRE_CLIENT_CREDENTIAL_FILE": str(tmp_path / "operator")}
        shown = await inferwire(server, "status", **variables)
        nobody = await inferwire(server, "chat", "hi", "--tls-ca", ca)
        user = await inferwire(server, "status", *flags)
        remote = await inferwire(
            server, "status", "--address", "10.0.0.1:1", "--credential-file", str(tmp_path / "user")
        )
        wrong = await inferwire(server, "status", "--tls-ca", str(tmp_path / "absent.pem"))
    assert (generated.exit_code, shown.exit_code) == (0, 0), generated.output + shown.output
    assert "scripted@1" in shown.output
    assert nobody.exit_code == 1
    assert "--credential-file" in nobody.output
    assert (user.exit_code, remote.exit_code, wrong.exit_code) == (1, 2, 2)
    assert "GetServerStatus needs one of the roles: operator\n" in user.output
    assert "over TLS only" in remote.output
    assert "--tls-ca" in remote.output
    assert "cannot be read" in wrong.output


async def test_a_server_that_speaks_tls_is_told_from_one_that_is_not_there(tmp_path: Path) -> None:
    deployment = Deployment(tmp_path)
    (tmp_path / "user").write_text(deployment.key("user"))
    (tmp_path / "other.pem").write_bytes(DevelopmentCa("another CA").certificate)
    credential = ("--credential-file", str(tmp_path / "user"))
    async with secured(deployment) as server:
        plaintext = await inferwire(server, "generate", "hi", "--timeout", "10")
        with_credential = await inferwire(server, "generate", "hi", "--timeout", "10", *credential)
        untrusted = await inferwire(server, "status", "--tls-ca", str(tmp_path / "other.pem"), *credential)
    absent = await inferwire(server, "status")
    for refused in (plaintext, with_credential):
        assert refused.exit_code == 1
        assert f"something listens at {server.address}" in refused.output
        assert "--tls-ca" in refused.output
    assert "gRPC over TLS with it fails" in untrusted.output
    assert f"no server answers at {server.address}" in absent.output


async def test_a_credential_that_is_no_good_is_to_be_replaced_and_a_missing_one_to_be_named(tmp_path: Path) -> None:
    deployment = Deployment(tmp_path)
    (tmp_path / "expired").write_text(deployment.key("user", expires_in=timedelta(seconds=-1)))
    (tmp_path / "unknown").write_text(f"iw_{'0' * 12}_{'A' * 43}")
    (tmp_path / "empty").touch()
    trust = ("--tls-ca", str(tmp_path / "ca.pem"))
    async with secured(deployment) as server:
        said = {
            name: (await inferwire(server, "generate", "hi", *trust, "--credential-file", str(tmp_path / name))).stderr
            for name in ("expired", "unknown", "empty")
        }
        missing = (await inferwire(server, "generate", "hi", *trust)).stderr
    assert f"has expired; get a new one and put it into {tmp_path / 'expired'}" in said["expired"]
    assert "get a new one" in said["unknown"]
    assert "get a new one" not in said["empty"]
    assert not any("--credential-file" in text for text in said.values())
    assert "a credential is required; name a file" in missing


async def test_a_refusal_speaks_of_the_model_only_where_the_role_permits_the_call_on_others(tmp_path: Path) -> None:
    deployment = Deployment(tmp_path)
    (tmp_path / "elsewhere").write_text(deployment.key("elsewhere"))
    (tmp_path / "operator").write_text(deployment.key("operator"))
    roles = {"elsewhere": {"methods": ["inferwire.v1.InferenceService/*"], "models": ["another*"]}}
    trust = ("--tls-ca", str(tmp_path / "ca.pem"))
    async with secured(deployment, roles=roles) as server:
        said = [
            (await inferwire(server, "generate", "hi", "--model", "scripted", *trust, "--credential-file", file)).stderr
            for file in (str(tmp_path / "elsewhere"), str(tmp_path / "operator"))
        ]
    assert "StreamGenerate on this model needs one of the roles: user\n" in said[0]
    assert "StreamGenerate needs one of the roles: user\n" in said[1]
