"""`inferwire keys` and `inferwire certs`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import IO, TYPE_CHECKING

import click

from inferwire_server.cli.refusal import Refusal

if TYPE_CHECKING:
    from inferwire_server.security.key_file import KeyFile

_HOSTS = ("localhost", "127.0.0.1", "::1")


@click.group()
@click.option("--api-keys", type=click.Path(path_type=Path), help="File of keys. Default: INFERWIRE_API_KEYS.")
@click.option(
    "--api-keys-secret", type=click.Path(path_type=Path), help="Its secret. Default: INFERWIRE_API_KEYS_SECRET."
)
@click.pass_context
def keys(context: click.Context, api_keys: Path | None, api_keys_secret: Path | None) -> None:
    """Make, list and revoke API keys. A running server notices within seconds."""
    from inferwire_server.security.key_file import KeyFile
    from inferwire_server.settings import SettingsError, load_settings

    try:
        settings = load_settings({"api_keys": api_keys, "api_keys_secret": api_keys_secret})
    except SettingsError as error:
        raise click.UsageError(str(error)) from None
    if settings.api_keys is None or settings.api_keys_secret is None:
        raise click.UsageError("name both files: --api-keys and --api-keys-secret, or their variables")
    context.obj = KeyFile(settings.api_keys, settings.api_keys_secret)


@contextmanager
def _file_errors() -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:
        raise click.ClickException(str(error)) from None


@keys.command()
@click.option("--tenant", required=True, help="Whose requests are made with it.")
@click.option("--subject", default="", help="Who it is in the tenant, for records. Default: the key's prefix.")
@click.option("--role", "roles", multiple=True, default=("user",), show_default=True, help="May be repeated.")
@click.option("--days", type=click.IntRange(min=1, max=3650), default=365, show_default=True, help="How long it lasts.")
@click.option(
    "--out", type=click.Path(path_type=Path), help="New file for the key, for its owner only. Default: print it."
)
@click.pass_obj
def create(file: KeyFile, tenant: str, subject: str, roles: tuple[str, ...], days: int, out: Path | None) -> None:
    """Print a new key, or write it to a file: the only time it is shown."""
    from inferwire_server.security.authorisation import ROLES

    now = datetime.now(UTC)
    with _file_errors(), _only_for_its_owner(out) as place:
        key = file.create(tenant=tenant, subject=subject, roles=roles, now=now, expires_at=now + timedelta(days=days))
        click.echo(key, file=place)
    for role in sorted({*roles} - ROLES.keys()):
        click.echo(f"role {role} is not built in ({', '.join(ROLES)}): the server's settings must define it", err=True)
    click.echo(f"tenant {tenant}, roles {' '.join(roles)}, until {now + timedelta(days=days):%Y-%m-%d}", err=True)


@contextmanager
def _only_for_its_owner(path: Path | None) -> Iterator[IO[str] | None]:
    """A new file that is gone again if what should be in it cannot be had; none for standard output."""
    if path is None:
        yield None
        return
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise Refusal(f"{path} is there already; no key was made") from None
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            yield file
    except BaseException:
        path.unlink(missing_ok=True)
        raise


@keys.command("list")
@click.pass_obj
def list_keys(file: KeyFile) -> None:
    """Show what is known of each key; never the key. Where there is no terminal, a line each, with tabs between."""
    from rich.console import Console

    from inferwire_server.cli.key_listing import key_listing

    with _file_errors():
        known = file.keys()
    key_listing(known, datetime.now(UTC), Console())


@keys.command()
@click.argument("prefix")
@click.pass_obj
def revoke(file: KeyFile, prefix: str) -> None:
    """End the key that begins with PREFIX (as listed); calls that have begun go on."""
    from inferwire_server.security.key_file import UnknownKey

    with _file_errors():
        try:
            revoked = file.revoke(prefix, now=datetime.now(UTC))
        except UnknownKey:
            raise click.ClickException(f"no key has the prefix {prefix}; see `inferwire keys list`") from None
    click.echo(f"revoked {revoked.prefix} of {revoked.caller.tenant}")


@click.group()
def certs() -> None:
    """Certificates for trying TLS out."""


@certs.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@click.option("--region", "regions", multiple=True, default=("eu", "us"), show_default=True, help="May be repeated.")
@click.option("--host", "hosts", multiple=True, help="Further name or address of the servers; may be repeated.")
@click.option("--force", is_flag=True, help="Replace what is there: whoever trusts the old CA trusts none of it.")
def dev(folder: Path, regions: tuple[str, ...], hosts: tuple[str, ...], force: bool) -> None:
    """Write a CA, a server certificate for each region and a client certificate to FOLDER. Not for production."""
    from inferwire_server.security.development_ca import development_files, write_development_certificates

    there = [path for path in development_files(folder, regions) if path.exists()]
    if there and not force:
        raise Refusal(f"{there[0]} is there already; --force replaces the CA and every certificate of it")
    with _file_errors():
        folders = write_development_certificates(folder, regions=regions, hosts=(*_HOSTS, *hosts))
    click.echo(f"{folder / 'ca.pem'}")
    for each in folders:
        click.echo(f"{each}: {', '.join(sorted(file.name for file in each.iterdir()))}")
