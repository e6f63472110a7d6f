"""Sends calls at their intended times, whatever becomes of the earlier ones."""

from __future__ import annotations

import asyncio
import ipaddress
import time
from collections.abc import Sequence

import grpc
from inferwire.v1 import model_pb2, model_pb2_grpc

from bench.load.caller import Caller, CallOptions, Record, since
from bench.load.schedule import Shot

CHANNEL_OPTIONS = (
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.http2.bdp_probe", 0),
    ("grpc.max_receive_message_length", 16 * 1024 * 1024),
)
PAUSE_BEFORE_START_S = 0.05


class TargetError(ValueError):
    """A target that cannot be used; the message says why and what to do."""


def require_loopback(target: str) -> None:
    """Raise TargetError for anything but this machine: a load generator pointed elsewhere is an attack."""
    if target.startswith("unix:"):
        return
    host, separator, port = target.rpartition(":")
    if not separator or not port.isdigit():
        raise TargetError(f"{target} is not host:port; use for example 127.0.0.1:50051")
    host = host.strip("[]")
    try:
        is_loopback = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_loopback = False
    if not is_loopback:
        raise TargetError(f"{host} is not this machine; run the load generator where the server is, on 127.0.0.1")


async def first_model(target: str) -> str:
    """The name of the first model served. Raises TargetError when the server does not answer."""
    async with grpc.aio.insecure_channel(target, options=CHANNEL_OPTIONS) as channel:
        try:
            listed = await model_pb2_grpc.ModelServiceStub(channel).ListModels(
                model_pb2.ListModelsRequest(), timeout=5.0, wait_for_ready=True
            )
        except grpc.aio.AioRpcError as error:
            raise TargetError(
                f"no server answers at {target} ({error.code().name}); start one or name --model"
            ) from None
    if not listed.models:
        raise TargetError(f"the server at {target} has no model; name one with --model")
    return listed.models[0].name


async def run(target: str, shots: Sequence[Shot], options: CallOptions, *, channels: int = 1) -> list[Record]:
    """Send every shot and wait for every outcome; calls are spread over the channels."""
    opened = [grpc.aio.insecure_channel(target, options=CHANNEL_OPTIONS) for _ in range(channels)]
    callers = [Caller(channel, options) for channel in opened]
    start = time.perf_counter() + PAUSE_BEFORE_START_S
    clock = since(start)
    try:
        async with asyncio.TaskGroup() as group:
            tasks = []
            for shot in shots:
                await asyncio.sleep(max(0.0, shot.at_s - clock()))
                tasks.append(group.create_task(callers[shot.number % channels].call(shot, clock)))
        return [task.result() for task in tasks]
    finally:
        for channel in opened:
            await channel.close()
