"""Keys as `inferwire keys list` shows them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from rich.console import Console
from rich.table import Column, Table

from inferwire_server.security.api_keys import ApiKey

_COLUMNS = ("prefix", "state", "tenant", "subject", "roles", "created", "expires")
_WHOLE = ("prefix", "state", "created", "expires")
"""What is of no use in pieces."""
_WIDEST = 1000
"""Columns in which the table is measured: more than it can need."""


def key_listing(keys: Sequence[ApiKey], now: datetime, console: Console) -> None:
    """A table where a terminal has room for it, else lines of fields with tabs between. Nothing is ever cut."""
    rows = [_row(key, now) for key in keys]
    columns = (Column(name, no_wrap=name in _WHOLE, overflow="fold") for name in _COLUMNS)
    table = Table(*columns)
    for row in rows:
        table.add_row(*row)
    needed = console.measure(table, options=console.options.update(max_width=_WIDEST)).minimum
    if console.is_terminal and needed <= console.width:
        console.print(table)
        return
    for row in rows:
        # Not by `print`, which turns tabs into spaces.
        console.file.write("\t".join(row) + "\n")


def _row(key: ApiKey, now: datetime) -> tuple[str, ...]:
    expires = f"{key.expires_at:%Y-%m-%d}" if key.expires_at else "never"
    caller = key.caller
    roles = " ".join(sorted(caller.roles))
    return key.prefix, key.state(now), caller.tenant, caller.subject, roles, f"{key.created_at:%Y-%m-%d}", expires
