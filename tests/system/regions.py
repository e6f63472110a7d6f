"""Regions of real server processes, streams over them, and what became of the streams."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from inferwire import ClientConfig, Region, ResilientChannel
from inferwire.v1 import generation_pb2, inference_pb2_grpc

from tests.real_model import NAME, real_model_folder
from tests.server_process import ServerProcess, server_process

STEP_S = 0.02


@dataclass
class Result:
    """One stream as its caller saw it."""

    ids: list[int] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    text: str = ""
    error: Exception | None = None
    resumed_at: list[str] = field(default_factory=list)

    @property
    def is_whole(self) -> bool:
        """Whether nothing failed, nothing is missing, and nothing came twice."""
        return self.error is None and self.offsets == list(range(len(self.ids)))


@asynccontextmanager
async def two_regions(
    *, servers_each: int = 2, near_options: dict[str, Any] | None = None
) -> AsyncIterator[list[list[ServerProcess]]]:
    """The near region's processes, then the far one's; all with the same model."""
    common = {"step_base_s": STEP_S, "max_running": 256}
    options = [common | (near_options or {})] * servers_each + [common] * servers_each
    async with AsyncExitStack() as stack:
        servers: list[ServerProcess] = []
        for pair in (options[at : at + 2] for at in range(0, len(options), 2)):
            # Two at a time, so that a machine with two cores starts each within its bound.
            starts = [stack.enter_async_context(server_process(engine_options=each)) for each in pair]
            servers += await asyncio.gather(*starts)
        yield [servers[:servers_each], servers[servers_each:]]


@asynccontextmanager
async def real_regions() -> AsyncIterator[list[list[ServerProcess]]]:
    """Two regions of one server each, with a real model on the exact profile."""
    settings = {"PORT": "0", "METRICS_PORT": "0", "PROFILE": "exact", "MODEL": NAME}
    settings["MODELS_DIR"] = str(real_model_folder())
    environment = dict(os.environ) | {f"INFERWIRE_{name}": value for name, value in settings.items()}
    command = [sys.executable, "-m", "inferwire_server", "serve", "--engine", "openvino", "--log-format", "json"]
    servers: list[ServerProcess] = []
    try:
        for _ in range(2):
            process = await asyncio.create_subprocess_exec(
                *command, env=environment, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE
            )
            servers.append(ServerProcess(process))
            await servers[-1].until_logged("ready", within_s=240.0)
        yield [servers[:1], servers[1:]]
    finally:
        for server in servers:
            await server.close()


def config_of(regions: list[list[ServerProcess]], **changes: Any) -> ClientConfig:
    """Region `near` before region `far`."""
    near, far = [tuple(server.address for server in region) for region in regions]
    return ClientConfig(
        regions=(Region(name="near", endpoints=near), Region(name="far", endpoints=far, priority=1)), **changes
    )


async def streams(
    channel: ResilientChannel,
    number: int,
    *,
    model: str = "scripted",
    tokens: int = 40,
    mid_stream: Callable[[], None] | None = None,
) -> list[Result]:
    """Run streams side by side; call `mid_stream` when each of them has had tokens (of a real model: a quarter)."""
    results = [Result() for _ in range(number)]
    begun = asyncio.Event()
    running = [
        asyncio.create_task(_stream(channel, each, _request(model, seed, tokens), begun, results))
        for seed, each in enumerate(results)
    ]
    if mid_stream is not None:
        await begun.wait()
        mid_stream()
    await asyncio.gather(*running)
    return results


def _request(model: str, seed: int, tokens: int) -> generation_pb2.GenerateRequest:
    request = generation_pb2.GenerateRequest(model=model, prompt=f"story {seed}", max_output_tokens=tokens)
    request.stop.ignore_end_of_sequence = True
    request.sampling.seed, request.sampling.temperature, request.output.token_ids = seed, 1.0, True
    if model != "scripted":
        # A real model repeats itself exactly when it always takes the likeliest token.
        request.sampling.temperature = 0.0
    return request


async def _stream(
    channel: ResilientChannel,
    result: Result,
    request: generation_pb2.GenerateRequest,
    begun: asyncio.Event,
    results: list[Result],
) -> None:
    stub: inference_pb2_grpc.InferenceServiceAsyncStub = inference_pb2_grpc.InferenceServiceStub(channel)
    call: Any = stub.StreamGenerate(request, timeout=240)
    try:
        async for event in call:
            if event.HasField("delta"):
                count = event.delta.token_count
                result.offsets += range(event.delta.token_offset, event.delta.token_offset + count)
                result.ids += event.delta.token_ids
                result.text += event.delta.text
                needed = len(results) if request.model == "scripted" else len(results) // 4
                if not begun.is_set() and sum(len(each.ids) >= 3 for each in results) >= needed:
                    begun.set()
    except Exception as error:  # noqa: BLE001 the test judges it
        result.error = error
        begun.set()
    trailers = await call.trailing_metadata()
    result.resumed_at = [str(value) for key, value in trailers if key == "x-inferwire-resumed-at"]
