"""What the command line says of refusals, as somebody at a terminal reads it."""

from __future__ import annotations

import asyncio

from click.testing import CliRunner
from inferwire.errors import Reason
from inferwire.testing import Refusal, Script
from inferwire_server.cli import inferwire as command_line

from tests.client.regions_of_fakes import fakes


async def test_a_wait_for_room_in_a_quota_is_said_with_its_length_on_standard_error() -> None:
    refused = Script(mishap=Refusal(Reason.QUOTA, hint_s=1.1, message="the tenant has no room"))
    async with fakes((refused, Script())) as (server,):
        arguments = ("generate", "hi", "--address", server.address)
        done = await asyncio.to_thread(CliRunner().invoke, command_line, arguments)

    assert (done.exit_code, done.stdout) == (0, "Hello, world!\n")
    assert "the tenant has no room; trying again in 1 s" in done.stderr


def test_top_without_a_terminal_says_just_that() -> None:
    done = CliRunner().invoke(command_line, ["top"])

    assert done.exit_code == 2
    assert done.stderr == "Error: top needs a terminal; `inferwire status` prints what there is once\n"
