"""Servers as processes of their own, and the CPU time that they and their children used."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any

import grpc
import psutil
from grpc_health.v1 import health_pb2, health_pb2_grpc

_START_LIMIT_S = 120.0
_STOP_LIMIT_S = 15.0


class ServerProcess:
    """A server that is ready to be called."""

    def __init__(self, process: subprocess.Popen[bytes], address: str, ready_s: float) -> None:
        self.address = address
        self.ready_s = ready_s
        """Seconds from its start until it was ready."""
        self._process = psutil.Process(process.pid)

    def cpu_s(self) -> float:
        """CPU seconds used so far by all its threads, and by its living children."""
        total = 0.0
        for process in (self._process, *self._process.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                total += _cpu_s(process)
        return total

    def channel(self) -> grpc.aio.Channel:
        """A plain channel of gRPC's, on a connection of its own."""
        return grpc.aio.insecure_channel(self.address, options=[("grpc.use_local_subchannel_pool", 1)])


@contextlib.asynccontextmanager
async def inferwire_server(
    *arguments: str, settings: Mapping[str, Any] | None = None, core: int | None = None, is_awaited: bool = True
) -> AsyncIterator[ServerProcess]:
    """`inferwire serve`, from when its readiness is SERVING, or at once when it is not awaited.

    `settings` go by the environment; `core` is where it must run.
    """
    port = free_port()
    environment = {f"INFERWIRE_{name.upper()}": _as_text(value) for name, value in (settings or {}).items()}
    command = [sys.executable, "-m", "inferwire_server", "serve", *arguments, "--port", str(port)]
    command += ["--metrics-port", "0", "--drain-settle", "0", "--drain-limit", "1"]
    ready = _until_serving if is_awaited else _at_once
    async with _process(command, environment, f"127.0.0.1:{port}", core, ready) as server:
        yield server


@contextlib.asynccontextmanager
async def module_server(module: str, *arguments: str, core: int | None = None) -> AsyncIterator[ServerProcess]:
    """`python -m module PORT arguments…` until it takes connections."""
    port = free_port()
    command = [sys.executable, "-m", module, str(port), *arguments]
    async with _process(command, {}, f"127.0.0.1:{port}", core, _until_connected) as server:
        yield server


def serving_core() -> int | None:
    """A core for a server to run on alone, so that the caller does not share it; None where there is only one."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    return cores[0] if len(cores) > 1 else None


@contextlib.contextmanager
def away_from(core: int | None) -> Any:
    """Keep this process off a core meanwhile."""
    if core is None:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, before - {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def free_port() -> int:
    """A port of the loopback interface that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextlib.asynccontextmanager
async def _process(
    command: list[str], environment: Mapping[str, str], address: str, core: int | None, ready: Any
) -> AsyncIterator[ServerProcess]:
    began = time.monotonic()
    process = subprocess.Popen(command, env={**os.environ, **environment}, stderr=subprocess.DEVNULL)  # noqa: ASYNC220 a moment, before anything is measured
    try:
        if core is not None:
            os.sched_setaffinity(process.pid, {core})
        async with asyncio.timeout(_START_LIMIT_S):
            await ready(process, address)
        yield ServerProcess(process, address, time.monotonic() - began)
    finally:
        process.terminate()
        try:
            await asyncio.to_thread(process.wait, _STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


async def _until_serving(process: subprocess.Popen[bytes], address: str) -> None:
    async with grpc.aio.insecure_channel(address) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        while True:
            _require_alive(process)
            with contextlib.suppress(grpc.aio.AioRpcError):
                reply = await health.Check(health_pb2.HealthCheckRequest(service="readiness"))
                if reply.status == health_pb2.HealthCheckResponse.SERVING:
                    return
            await asyncio.sleep(0.02)


async def _at_once(process: subprocess.Popen[bytes], address: str) -> None:
    return None


async def _until_connected(process: subprocess.Popen[bytes], address: str) -> None:
    host, _, port = address.rpartition(":")
    while True:
        _require_alive(process)
        with contextlib.suppress(OSError):
            _, writer = await asyncio.open_connection(host, int(port))
            writer.close()
            return
        await asyncio.sleep(0.02)


def _cpu_s(process: psutil.Process) -> float:
    if sys.platform == "linux":
        # The clock that `clock_getcpuclockid` names: exact, where the accounts of /proc count in hundredths.
        return time.clock_gettime(((~process.pid) << 3) | 2)
    times = process.cpu_times()
    return times.user + times.system


def _require_alive(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is not None:
        raise RuntimeError(f"{process.args!r} ended with status {process.returncode} before it was ready")


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
