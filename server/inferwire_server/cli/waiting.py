"""Says what the command line waits for while the client tries again."""

from __future__ import annotations

import click
from inferwire import CallWaits, Observer

_WORTH_SAYING_S = 1.0


class Waits(Observer):
    """Tells standard error of every wait that a person would notice."""

    def call_waits(self, wait: CallWaits) -> None:
        """As the server said it, with how long it takes."""
        if wait.delay_s > _WORTH_SAYING_S:
            click.echo(f"{wait.message or wait.reason}; trying again in {wait.delay_s:.0f} s", err=True)
