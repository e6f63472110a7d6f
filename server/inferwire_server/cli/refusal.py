"""A refusal that is no fault of the command's grammar: its message alone, without the banner on usage."""

from __future__ import annotations

import click


class Refusal(click.ClickException):
    """Nothing was done; exit status 2."""

    exit_code = 2
