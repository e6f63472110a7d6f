"""`inferwire audit`."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import click


@click.group()
def audit() -> None:
    """Look after audit records."""


@audit.command()
@click.option("--audit-dir", type=click.Path(path_type=Path), help="Their folder. Default: INFERWIRE_AUDIT_DIR.")
@click.option(
    "--older-than", type=click.IntRange(min=0), metavar="DAYS", help="Default: INFERWIRE_AUDIT_RETENTION_DAYS, or 90."
)
def purge(audit_dir: Path | None, older_than: int | None) -> None:
    """Delete records of days longer ago than DAYS; today's stay. A server does so by itself, every day."""
    from inferwire_server.security.audit_files import purge as purge_files
    from inferwire_server.settings import SettingsError, load_settings

    try:
        settings = load_settings({"audit_dir": audit_dir})
    except SettingsError as error:
        raise click.UsageError(str(error)) from None
    if settings.audit_dir is None:
        raise click.UsageError("name the folder: --audit-dir, or INFERWIRE_AUDIT_DIR")
    days = settings.audit_retention_days if older_than is None else older_than
    try:
        removed = purge_files(settings.audit_dir, days, datetime.now(UTC).date())
    except OSError as error:
        raise click.ClickException(f"{error.filename or settings.audit_dir}: {error.strerror}") from None
    for path in removed:
        click.echo(f"removed {path.name}")
