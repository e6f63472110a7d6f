"""`inferwire generate`, `chat` and `status`: talking to a running server."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from inferwire_server.cli.advising import advice
from inferwire_server.cli.reaching import Reach, reach_options

if TYPE_CHECKING:
    from inferwire import BlockingTextStream, Client, Reply
    from inferwire.requests import Options


def _generation_options(command: Any) -> Any:
    for option in reversed(
        (
            click.option("--model", help="Default: the server's only model."),
            click.option("-n", "--max-output-tokens", type=click.IntRange(min=1), help="Default: the model's."),
            click.option("--temperature", type=float, help="0 is greedy. Default: the model's."),
            click.option("--top-p", type=float, help="Default: the model's."),
            click.option(
                "--seed",
                type=click.IntRange(0, 2**32 - 1),
                help="Repeats the draws; exactly with serve --profile exact.",
            ),
            click.option("--stop", multiple=True, help="Text that ends the output; may be repeated."),
            click.option("--timeout", "timeout_s", type=float, default=120.0, show_default=True, help="Seconds."),
        )
    ):
        command = option(command)
    return reach_options(command)


@contextmanager
def _client(reach: Reach) -> Iterator[Client]:
    from inferwire import Client, InferwireError  # gRPC takes its time, and `--help` needs none of it
    from inferwire.settings_reader import SettingsError

    from inferwire_server.cli.waiting import Waits

    try:
        with Client(reach.config(), observer=Waits()) as client:
            yield client
    except SettingsError as error:
        raise click.UsageError(str(error)) from None
    except InferwireError as error:
        raise click.ClickException(advice(error, reach)) from None


def _given(flags: dict[str, Any]) -> Options:
    options: Any = {name: value for name, value in flags.items() if value not in (None, (), "")}
    return options  # type: ignore[no-any-return]


@click.command()
@click.argument("prompt")
@_generation_options
def generate(prompt: str, reach: Reach, timeout_s: float, **flags: Any) -> None:
    """Continue PROMPT (`-` reads standard input), streaming."""
    text = sys.stdin.read() if prompt == "-" else prompt
    with _client(reach) as client:
        _show(client.stream(text, timeout_s=timeout_s, **_given(flags)))


@click.command()
@click.argument("message", required=False)
@click.option("--system", help="A system message to begin with.")
@_generation_options
def chat(message: str | None, system: str | None, reach: Reach, timeout_s: float, **flags: Any) -> None:
    """Talk to the model; with MESSAGE, once. Leave with Ctrl-D."""
    messages = [("system", system)] if system else []
    with _client(reach) as client:
        if message is not None:
            messages.append(("user", message))
            _show(client.stream_chat(messages, timeout_s=timeout_s, **_given(flags)))
            return
        from inferwire import InferwireError

        for line in _lines():
            asked = [*messages, ("user", line)]
            try:
                reply = _show(client.stream_chat(asked, timeout_s=timeout_s, **_given(flags)))
            except InferwireError as error:
                click.echo(f"Error: {advice(error, reach)}", err=True)
            except KeyboardInterrupt:
                click.echo("\n(stopped)", err=True)
            else:
                messages = [*asked, ("assistant", reply.text)]


def _lines() -> Iterator[str]:
    while True:
        try:
            line = click.prompt("you", prompt_suffix="> ", err=True)
        except click.Abort:
            click.echo(err=True)
            return
        yield line


def _show(stream: BlockingTextStream) -> Reply:
    with stream:
        for chunk in stream:
            click.echo(chunk.text, nl=False)
    click.echo()
    return stream.reply


@click.command()
@reach_options
def status(reach: Reach) -> None:
    """Show what the server serves and how it is."""
    from inferwire.v1 import operations_pb2
    from rich.console import Console
    from rich.table import Table

    with _client(reach) as client:
        info, state, models = client.server_info(timeout_s=10), client.status(timeout_s=10), client.models(timeout_s=10)
    load = state.load
    place = f" in {info.region}" if info.region else ""
    reason = f": {state.reason}" if state.reason else ""
    rows = Table(show_header=False, box=None)
    rows.add_row("server", f"inferwire {info.server_version} at {reach.address}{place}")
    if state.insecure:
        rows.add_row("open", "other machines are served without TLS or authentication")
    rows.add_row("state", _name(operations_pb2.ServerState.Name(state.state)) + reason)
    engine_state = _name(operations_pb2.EngineState.Name(state.engine_state))
    rows.add_row("engine", f"{engine_state}, {state.engine_restarts} restarts")
    rate = f"{load.output_tokens_per_second:.1f} tokens/s"
    rows.add_row("load", f"{load.running} running, {load.waiting} waiting, {rate}")
    if load.HasField("kv_utilization"):
        rows.add_row("KV cache", f"{load.kv_utilization:.0%}")
    for model in models:
        rows.add_row("model", f"{model.name} on {model.engine}, context {model.limits.max_context_tokens}")
    Console().print(rows)


def _name(value: str) -> str:
    return value.split("_STATE_")[-1].lower()
