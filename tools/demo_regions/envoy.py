"""The real Envoy on the configuration that is shipped, with addresses of its own."""

from __future__ import annotations

import asyncio
import http.client
import json
import shutil
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).parents[2] / "docker" / "envoy"
CONFIGURATION = FOLDER / "envoy.yaml"
DESCRIPTORS = FOLDER / "inferwire.binpb"
START_LIMIT_S = 30.0
_TRIES = 5
_LOG = "log"


class EnvoyError(Exception):
    """Envoy did not start; the message has what it said."""


def binary() -> Path | None:
    """Envoy beside this Python or on the path; None where there is none."""
    beside = Path(sys.executable).with_name("envoy")
    found = str(beside) if beside.exists() else shutil.which("envoy")
    return None if found is None else Path(found)


def rendered(regions: Sequence[Sequence[str]], *, admin_port: int) -> dict[str, Any]:
    """The shipped configuration with these servers, as `host:port`, nearest region first, on free loopback ports."""
    configuration: dict[str, Any] = yaml.safe_load(CONFIGURATION.read_text(encoding="utf-8"))
    configuration["admin"]["address"] = _socket("127.0.0.1", admin_port)
    resources = configuration["static_resources"]
    for listener in resources["listeners"]:
        listener["address"] = _socket("127.0.0.1", 0)
    servers, admin = resources["clusters"]
    places = servers["load_assignment"]["endpoints"]
    for place, addresses in zip(places, regions, strict=True):
        place["lb_endpoints"] = [_endpoint(*address.rsplit(":", 1)) for address in addresses]
    admin["load_assignment"]["endpoints"] = [{"lb_endpoints": [_endpoint("127.0.0.1", admin_port)]}]
    [manager] = resources["listeners"][0]["filter_chains"][0]["filters"]
    transcoder = next(one for one in manager["typed_config"]["http_filters"] if one["name"].endswith("json_transcoder"))
    transcoder["typed_config"]["proto_descriptor"] = str(DESCRIPTORS)
    return configuration


def _socket(host: str, port: int) -> dict[str, Any]:
    return {"socket_address": {"address": host, "port_value": port}}


def _endpoint(host: str, port: str | int) -> dict[str, Any]:
    return {"endpoint": {"address": _socket(host, int(port))}}


class Envoy:
    """One running Envoy."""

    def __init__(self, process: asyncio.subprocess.Process, admin_port: int) -> None:
        self._process = process
        self._admin_port = admin_port
        self._ports: dict[str, int] = {}

    @property
    def address(self) -> str:
        """Where it takes calls: gRPC, gRPC-web and JSON."""
        return f"127.0.0.1:{self._ports['calls']}"

    @property
    def metrics_address(self) -> str:
        """Where Prometheus and probes find it."""
        return f"127.0.0.1:{self._ports['metrics']}"

    @property
    def is_running(self) -> bool:
        return self._process.returncode is None

    async def until_ready(self) -> bool:
        """Wait until it has asked every server for its health; False when it has ended instead."""
        async with asyncio.timeout(START_LIMIT_S):
            while self.is_running:
                with suppress(OSError):
                    status, _ = await asyncio.to_thread(_get, self._admin_port, "/ready")
                    if status == http.client.OK:
                        break
                await asyncio.sleep(0.05)
            else:
                return False
        listeners = json.loads(await self.ask("/listeners?format=json"))["listener_statuses"]
        self._ports = {one["name"]: one["local_address"]["socket_address"]["port_value"] for one in listeners}
        return True

    async def ask(self, path: str) -> bytes:
        """A page of the admin interface."""
        _, page = await asyncio.to_thread(_get, self._admin_port, path)
        return page

    async def hosts(self) -> dict[str, dict[str, Any]]:
        """What it knows of each server, by `host:port`: `priority`, `health_status`, `stats`."""
        clusters = json.loads(await self.ask("/clusters?format=json"))["cluster_statuses"]
        [servers] = [cluster for cluster in clusters if cluster["name"] == "inferwire"]
        return {_place(host["address"]["socket_address"]): _host(host) for host in servers["host_statuses"]}

    async def close(self) -> None:
        """Kill it."""
        with suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()


def _place(address: dict[str, Any]) -> str:
    return f"{address['address']}:{address['port_value']}"


def _host(status: dict[str, Any]) -> dict[str, Any]:
    counts = {one["name"]: int(one.get("value", 0)) for one in status["stats"]}
    return {"priority": status.get("priority", 0), "health": status["health_status"], "counts": counts}


@asynccontextmanager
async def envoy(regions: Sequence[Sequence[str]]) -> AsyncIterator[Envoy]:
    """Start it before these servers, nearest region first, and wait until it takes calls.

    Raises EnvoyError, also at the end when it has not lived so long.
    """
    program = binary()
    if program is None:
        raise EnvoyError("there is no envoy here; `make .venv/.dev` installs it")
    with tempfile.TemporaryDirectory(prefix="inferwire-envoy-") as folder:
        running = await _started(program, regions, Path(folder))
        try:
            yield running
            if not running.is_running:
                raise EnvoyError(f"envoy has ended: {_tail(Path(folder) / _LOG)}")
        finally:
            await running.close()


async def _started(program: Path, regions: Sequence[Sequence[str]], folder: Path) -> Envoy:
    file, log = folder / "envoy.yaml", folder / _LOG
    for _ in range(_TRIES):
        # Somebody may take the port first: then Envoy ends, and another is tried.
        admin_port = _free_port()
        file.write_text(yaml.safe_dump(rendered(regions, admin_port=admin_port)), encoding="utf-8")
        command = [str(program), "--config-path", str(file), "--concurrency", "1", "--disable-hot-restart"]
        with log.open("wb") as output:
            process = await asyncio.create_subprocess_exec(
                *command, "--log-level", "warning", stdout=output, stderr=output
            )
        running = Envoy(process, admin_port)
        try:
            if await running.until_ready():
                return running
        except BaseException:
            await running.close()
            raise
    raise EnvoyError(f"envoy does not start: {_tail(log)}")


def _tail(log: Path) -> str:
    return log.read_text(errors="replace")[-2000:]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _get(port: int, path: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()
