"""`inferwire serve`."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

if TYPE_CHECKING:
    from inferwire_server.app.inference_server import InferenceServer

ENGINE_LOST = 70
"""Exit status after the loss of an engine that cannot come back: EX_SOFTWARE of sysexits.h."""


@click.command()
@click.argument("model", required=False)
@click.option("--config", "config_file", type=click.Path(path_type=Path), help="Settings file (TOML).")
@click.option("--engine", type=click.Choice(["auto", "openvino", "tensorrt-llm", "scripted"]), help="Default: auto.")
@click.option(
    "--profile", type=click.Choice(["fast", "exact"]), help="OpenVINO: speed, or repeatable f32. Default: fast."
)
@click.option(
    "--prefix-caching",
    type=click.Choice(["auto", "off", "shared"]),
    help="auto: for one tenant only where the engine cannot keep tenants apart. Default: auto.",
)
@click.option("--host", help="Address to listen on, or unix:/path/of/a.socket. Default: 127.0.0.1.")
@click.option("--port", type=int, help="gRPC port; 0 picks a free one. Default: 50051.")
@click.option("--metrics-port", type=int, help="Port of the Prometheus page; 0 picks a free one. Default: 9090.")
@click.option("--no-metrics", is_flag=True, help="Serve no Prometheus page.")
@click.option("--tls-certificate", type=click.Path(path_type=Path), help="PEM file; with --tls-key turns TLS on.")
@click.option("--tls-key", type=click.Path(path_type=Path), help="PEM file of its key.")
@click.option("--tls-client-ca", type=click.Path(path_type=Path), help="PEM file; asks clients for certificates of it.")
@click.option("--health-port", type=int, help="Port without TLS for health alone. Default: none.")
@click.option("--insecure", is_flag=True, default=None, help="Serve other hosts without TLS or authentication.")
@click.option(
    "--tenants", type=click.Path(path_type=Path), help="File of what each tenant may use. Default: no limits."
)
@click.option("--audit-dir", type=click.Path(path_type=Path), help="Folder of audit records. Default: none are kept.")
@click.option("--region", help="Name of the region, as clients see it.")
@click.option("--models-dir", type=click.Path(path_type=Path), help="Folder of pulled models.")
@click.option("--drain-limit", type=float, help="Seconds until running work is ended on SIGTERM. Default: 60.")
@click.option("--drain-settle", type=float, help="Seconds of late calls still served on SIGTERM. Default: 2.")
@click.option("--log-format", type=click.Choice(["auto", "json", "console"]), help="Default: auto.")
@click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]), help="Default: info.")
def serve(config_file: Path | None, no_metrics: bool, **flags: Any) -> None:
    """Serve MODEL (default: smollm2-135m-instruct) until SIGTERM or Ctrl-C, which drain it; a second one exits at once.

    TensorRT-LLM serves a Hugging Face checkpoint: there MODEL is the path of its folder.

    Every setting can also come from the environment (INFERWIRE_PORT=…) or a TOML file.
    """
    # What costs a second to import is imported only once the settings and the engine's package are known to be there.
    from inferwire_server.app.engine_choice import require_engine
    from inferwire_server.domain.errors import ServiceError
    from inferwire_server.security.exposure import check_exposure
    from inferwire_server.settings import SettingsError, load_settings

    if no_metrics:
        flags["metrics_enabled"] = False
    try:
        settings = load_settings(flags, config_file)
        check_exposure(settings)
        require_engine(settings)
    except (SettingsError, ServiceError) as error:
        _refuse(error)

    import uvloop

    from inferwire_server.app.inference_server import InferenceServer, ServerError
    from inferwire_server.app.served_model import choose_model
    from inferwire_server.models.errors import ModelError
    from inferwire_server.observability.logs import configure_logs

    configure_logs(settings.log_format, settings.log_level)
    try:
        model = choose_model(settings)
    except (SettingsError, ModelError, ServiceError) as error:
        _refuse(error)
    try:
        failure = uvloop.run(_serve(lambda: InferenceServer(settings, model)))
    except SettingsError as error:
        _refuse(error)
    except (ServerError, ModelError, ServiceError) as error:
        _end(error, 1)
    if failure:
        _end(failure, ENGINE_LOST)


def _end(reason: object, status: int) -> NoReturn:
    """After the log's last line, and by its way: whoever waits for this status waits for no reader of the log."""
    from inferwire_server.observability.log_writer import STANDARD_ERROR

    STANDARD_ERROR.put(f"inferwire: {reason}")
    sys.exit(status)


def _refuse(error: Exception) -> NoReturn:
    click.echo(f"inferwire: {error}", err=True)
    sys.exit(2)


async def _serve(make_server: Callable[[], InferenceServer]) -> str:
    """Serve until a drain is complete; why it was not asked for, or nothing."""
    from inferwire_server.observability.log_writer import STANDARD_ERROR

    server = make_server()
    loop = asyncio.get_running_loop()
    starting = asyncio.create_task(server.start(), name="start")

    def stop(number: int) -> None:
        if server.is_draining:
            STANDARD_ERROR.close()
            os._exit(128 + number)
        if starting.done():
            server.drain()
        else:
            starting.cancel()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, number)
    try:
        await starting
    except asyncio.CancelledError:
        await server.close()
        return ""
    except BaseException:
        await server.close()
        raise
    # What lives as long as the process need not be looked through again and again, with every stream standing still.
    gc.collect()
    gc.freeze()
    await server.until_stopped()
    return server.failure
