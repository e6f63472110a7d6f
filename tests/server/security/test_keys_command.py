"""`inferwire keys` and `inferwire certs`, as an operator types them."""

from __future__ import annotations

import io
import json
import stat
from datetime import UTC, datetime
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from cryptography import x509
from hypothesis import given
from hypothesis import strategies as st
from inferwire_server.cli import inferwire as command_line
from inferwire_server.cli.key_listing import key_listing
from inferwire_server.domain.errors import Unauthenticated
from inferwire_server.security.api_keys import ApiKeys, load_key_ring
from inferwire_server.security.certificates import load_certificates
from inferwire_server.security.key_file import KeyFile
from rich.console import Console


def inferwire(folder: Path, *arguments: str) -> Result:
    """To its end, with the files of keys in `folder`."""
    names = {"INFERWIRE_API_KEYS": folder / "keys.json", "INFERWIRE_API_KEYS_SECRET": folder / "keys.secret"}
    environment = {name: str(path) for name, path in names.items()} | {"COLUMNS": "200"}
    return CliRunner().invoke(command_line, arguments, env=environment)


def ring(folder: Path) -> ApiKeys:
    contents = [(folder / "keys.json").read_bytes(), (folder / "keys.secret").read_bytes()]
    return ApiKeys(lambda: load_key_ring(contents))


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_key_is_shown_once_kept_as_a_digest_listed_by_its_prefix_and_revoked(tmp_path: Path) -> None:
    made = inferwire(tmp_path, "keys", "create", "--tenant", "acme", "--subject", "indexer", "--role", "operator")
    key = made.stdout.strip()
    prefix = key[:15]
    caller = ring(tmp_path).caller(key)
    assert (caller.tenant, caller.subject, caller.roles) == ("acme", "indexer", frozenset({"operator"}))
    kept = (tmp_path / "keys.json").read_text()
    assert key.partition(f"{prefix}_")[2] not in kept
    assert {mode(tmp_path / name) for name in ("keys.json", "keys.secret")} == {0o600}

    listed = inferwire(tmp_path, "keys", "list").output
    assert prefix in listed
    assert "valid" in listed
    assert key not in listed

    assert inferwire(tmp_path, "keys", "revoke", prefix).exit_code == 0
    with pytest.raises(Unauthenticated, match="revoked"):
        ring(tmp_path).caller(key)
    unknown = inferwire(tmp_path, "keys", "revoke", "iw_000000000000")
    assert unknown.exit_code == 1
    assert "no key has the prefix" in unknown.output


def test_a_name_that_cannot_be_one_and_a_broken_file_are_said(tmp_path: Path) -> None:
    wrong = inferwire(tmp_path, "keys", "create", "--tenant", "no tenant")
    (tmp_path / "keys.json").write_text('{"format": 1, "keys": [{}]}')
    broken = inferwire(tmp_path, "keys", "list")
    assert (wrong.exit_code, broken.exit_code) == (1, 1)
    assert "a tenant is" in wrong.output
    assert "no file of API keys" in broken.output
    assert isinstance(broken.exception, SystemExit)
    assert isinstance(wrong.exception, SystemExit)


def test_the_secret_decides_and_another_one_makes_every_key_unknown(tmp_path: Path) -> None:
    key = inferwire(tmp_path, "keys", "create", "--tenant", "acme").stdout.strip()
    (tmp_path / "keys.secret").write_text("0" * 64)
    with pytest.raises(Unauthenticated):
        ring(tmp_path).caller(key)


@given(st.text())
def test_nothing_else_is_a_key(text: str) -> None:
    with pytest.raises(Unauthenticated):
        ApiKeys(lambda: load_key_ring([b'{"format": 1, "keys": []}', b"0" * 64])).caller(text)


@given(st.binary() | st.recursive(st.none() | st.text(), st.lists).map(lambda value: json.dumps(value).encode()))
def test_no_content_makes_reading_the_files_fail_otherwise_than_as_a_bad_file(content: bytes) -> None:
    with pytest.raises(ValueError, match="no file of API keys"):
        load_key_ring([content, b"0" * 64])


def test_development_certificates_fit_together_for_two_regions_and_a_client(tmp_path: Path) -> None:
    done = inferwire(tmp_path, "certs", "dev", str(tmp_path / "dev"), "--host", "inferwire.internal")
    assert done.exit_code == 0, done.output
    ca = x509.load_pem_x509_certificate((tmp_path / "dev/ca.pem").read_bytes())
    for name in ("eu/server", "us/server", "client/client"):
        pem, key = tmp_path / f"dev/{name}.pem", tmp_path / f"dev/{name}-key.pem"
        load_certificates([pem.read_bytes(), key.read_bytes(), (tmp_path / "dev/ca.pem").read_bytes()], 0.0)
        x509.load_pem_x509_certificate(pem.read_bytes()).verify_directly_issued_by(ca)
        assert mode(key) == 0o600
    server = x509.load_pem_x509_certificate((tmp_path / "dev/eu/server.pem").read_bytes())
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert "inferwire.internal" in names.get_values_for_type(x509.DNSName)
    assert names.get_values_for_type(x509.UniformResourceIdentifier) == ["spiffe://inferwire.dev/region/eu/server"]


def test_a_second_development_ca_does_not_overwrite_the_first_unless_it_is_forced(tmp_path: Path) -> None:
    again = ("certs", "dev", str(tmp_path))
    inferwire(tmp_path, *again)
    first = (tmp_path / "ca.pem").read_bytes()

    refused = inferwire(tmp_path, *again)
    other_region = inferwire(tmp_path, *again, "--region", "asia")
    assert (refused.exit_code, other_region.exit_code) == (2, 2)
    assert f"{tmp_path / 'ca.pem'} is there already; --force" in refused.stderr
    assert "Usage" not in refused.stderr
    assert (tmp_path / "ca.pem").read_bytes() == first
    assert not (tmp_path / "asia").exists()

    assert inferwire(tmp_path, *again, "--force").exit_code == 0
    assert (tmp_path / "ca.pem").read_bytes() != first


def test_a_key_goes_to_a_new_file_for_its_owner_and_who_has_it_to_standard_error(tmp_path: Path) -> None:
    out = tmp_path / "search.key"
    create = ("keys", "create", "--tenant", "acme", "--role", "user", "--out", str(out))
    made = inferwire(tmp_path, *create)
    kept = out.read_text()
    assert (made.exit_code, made.stdout, mode(out)) == (0, "", 0o600)
    assert "tenant acme, roles user" in made.stderr
    assert "is not built in" not in made.stderr
    assert ring(tmp_path).caller(kept.strip()).tenant == "acme"

    again = inferwire(tmp_path, *create)
    assert (again.exit_code, out.read_text()) == (2, kept)
    assert len(inferwire(tmp_path, "keys", "list").stdout.splitlines()) == 1

    wrong = inferwire(tmp_path, "keys", "create", "--tenant", "no tenant", "--out", str(tmp_path / "never.key"))
    assert wrong.exit_code == 1
    assert not (tmp_path / "never.key").exists()


def test_a_role_that_only_settings_can_give_a_meaning_is_warned_of(tmp_path: Path) -> None:
    made = inferwire(tmp_path, "keys", "create", "--tenant", "acme", "--role", "nonsense")
    assert made.exit_code == 0
    assert "role nonsense is not built in (user, operator): the server's settings must define it" in made.stderr
    assert made.stdout.startswith("iw_")


def test_listed_keys_are_whole_however_narrow_the_place(tmp_path: Path) -> None:
    prefix = inferwire(tmp_path, "keys", "create", "--tenant", "a-tenant-with-quite-a-name").stdout[:15]
    known = KeyFile(tmp_path / "keys.json", tmp_path / "keys.secret").keys()
    piped = inferwire(tmp_path, "keys", "list").stdout.splitlines()
    assert [line.split("\t")[:3] for line in piped] == [[prefix, "valid", "a-tenant-with-quite-a-name"]]
    whole = {prefix, f"{known[0].created_at:%Y-%m-%d}", f"{known[0].expires_at:%Y-%m-%d}"}
    for columns in (20, 60, 80, 200):
        page = io.StringIO()
        key_listing(known, datetime.now(UTC), Console(file=page, force_terminal=True, color_system=None, width=columns))
        assert whole <= {*page.getvalue().split()}
        assert "…" not in page.getvalue()
