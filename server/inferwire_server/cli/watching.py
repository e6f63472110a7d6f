"""`inferwire top`: a live view of one server."""

from __future__ import annotations

import sys

import click

from inferwire_server.cli.advising import advice
from inferwire_server.cli.reaching import Reach, reach_options
from inferwire_server.cli.refusal import Refusal


@click.command()
@reach_options
@click.option(
    "--metrics",
    "page",
    default="http://127.0.0.1:9090/metrics",
    show_default=True,
    help="The server's metrics page, for times and outcomes.",
)
@click.option(
    "--interval",
    "interval_s",
    type=click.FloatRange(0.1, 60),
    default=1.0,
    show_default=True,
    help="Seconds between looks.",
)
def top(reach: Reach, page: str, interval_s: float) -> None:
    """Watch a server: rates, batch, queue, KV cache, tenants, engine. `q` or Ctrl-C quits."""
    if not page.startswith(("http://", "https://")):
        raise click.UsageError(f"--metrics={page}: not an http address")
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise Refusal("top needs a terminal; `inferwire status` prints what there is once")
    import asyncio

    from inferwire import InferwireError

    from inferwire_server.cli.top_session import TopSession

    try:
        asyncio.run(TopSession(reach.config(), reach.address, page, interval_s).run())
    except InferwireError as error:
        raise click.ClickException(advice(error, reach)) from None
    except KeyboardInterrupt:  # before the screen was there
        return
