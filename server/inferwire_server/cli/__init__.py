"""`inferwire`: serve and pull models, look at what is there, and talk to a server."""

from __future__ import annotations

import os
import sys

# Worker processes are spawned, never forked with gRPC inside; its fork handlers only print warnings.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")
# What gRPC's core would print is said by this command line in its own words.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

import click

from inferwire_server.cli.auditing import audit
from inferwire_server.cli.calling import chat, generate, status
from inferwire_server.cli.modelling import models, pull
from inferwire_server.cli.securing import certs, keys
from inferwire_server.cli.serving import serve
from inferwire_server.cli.watching import top


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="inferwire")
def inferwire() -> None:
    """Language models as typed gRPC."""


for command in (serve, pull, models, generate, chat, status, top, keys, certs, audit):
    inferwire.add_command(command)


def run() -> int:
    """The console script's body: click's own exit codes, and quiet ends of pipes."""
    try:
        inferwire.main(prog_name="inferwire", standalone_mode=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return 0
