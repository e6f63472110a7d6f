"""A whole server in the test's own loop: real gRPC on a real socket, with a scripted engine behind it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from inferwire.v1 import generation_pb2, inference_pb2_grpc, model_pb2_grpc, operations_pb2_grpc
from inferwire_server.app.inference_server import InferenceServer
from inferwire_server.app.served_model import ServedModel, scripted_model
from inferwire_server.engines.scripted import Plan, ScriptedEngine, ScriptedOptions
from inferwire_server.settings import Settings

MODEL = "scripted"
QUICK = ScriptedOptions(step_base_s=0.002)
"""A step short enough for a test to wait for many."""


class Serving:
    """One running server and a channel to it."""

    def __init__(self, server: InferenceServer, engine: ScriptedEngine, options: list[tuple[str, Any]]) -> None:
        self.server = server
        self.engine = engine
        self._options = options
        self.connect()

    def connect(self) -> None:
        """Open the channel, which a server that was not listening yet needs once it is."""
        self.channel = channel = grpc.aio.insecure_channel(self.server.address, options=self._options)
        self.inference = inference_pb2_grpc.InferenceServiceStub(channel)
        self.models = model_pb2_grpc.ModelServiceStub(channel)
        self.operations = operations_pb2_grpc.OperationsServiceStub(channel)
        self.health = health_pb2_grpc.HealthStub(channel)

    @property
    def address(self) -> str:
        return self.server.address

    def sample(self, name: str, **labels: str) -> float:
        """A metric's value; 0 when it has no sample yet."""
        value = self.server.metrics.registry.get_sample_value(name, labels or {"model": "scripted@1"})
        return 0.0 if value is None else value

    def outcomes(self) -> dict[str, int]:
        """How many requests for a generation ended how."""
        samples = [s for family in self.server.metrics.registry.collect() for s in family.samples]
        ended = [s for s in samples if s.name == "inferwire_generations_total" and s.value]
        return {s.labels["outcome"]: int(s.value) for s in ended}

    @property
    def calls_under_way(self) -> int:
        """Calls that have begun and not ended."""
        samples = [s for family in self.server.metrics.registry.collect() for s in family.samples]
        begun = sum(s.value for s in samples if s.name == "grpc_server_started_total")
        return int(begun - sum(s.value for s in samples if s.name == "grpc_server_handled_total"))

    @property
    def is_quiet(self) -> bool:
        """Whether nothing waits, runs or holds anything."""
        load = self.engine.load()
        gauges = ("inferwire_running_generations", "inferwire_waiting_generations", "inferwire_waiting_prompt_tokens")
        return (
            not any(self.sample(gauge) for gauge in gauges)
            and not load.running
            and not load.kv_blocks_reserved
            and not self.calls_under_way
            and not self.server.sessions.num_live
        )

    async def is_alive(self) -> bool:
        """Whether it still answers, and says so."""
        answer = await self.inference.Generate(request("ping", max_output_tokens=4), timeout=20)
        health = await self.health.Check(health_pb2.HealthCheckRequest(), timeout=20)
        return bool(answer.outputs[0].text) and health.status == health_pb2.HealthCheckResponse.SERVING


@asynccontextmanager
async def serving(
    options: ScriptedOptions | None = None,
    *,
    plans: Callable[[str], Plan] | None = None,
    engine: ScriptedEngine | None = None,
    adapt: Callable[[ServedModel], ServedModel] = lambda model: model,
    channel_options: list[tuple[str, Any]] | None = None,
    start: bool = True,
    **settings: Any,
) -> AsyncIterator[Serving]:
    """A server that is warm, or with `start=False` one that is not started yet.

    `engine` takes the place of one made of options and plans, and `adapt` may change the model.
    """
    engine = engine or ScriptedEngine(options or QUICK, plans=plans)
    model = adapt(scripted_model(engine, (options or QUICK).max_context_tokens))
    defaults: dict[str, Any] = {"port": 0, "metrics_enabled": False, "drain_settle": 0.0, "drain_limit": 5.0}
    server = InferenceServer(Settings(**(defaults | settings)), model)
    if start:
        await server.start()
    running = Serving(server, engine, channel_options or [])
    try:
        yield running
    finally:
        await running.channel.close()
        await server.close()


def request(prompt: str | None = "tell a story", **fields: Any) -> generation_pb2.GenerateRequest:
    """A request to the scripted model; 16 tokens unless told otherwise."""
    values: dict[str, Any] = {"model": MODEL, "prompt": prompt, "max_output_tokens": 16} | fields
    return generation_pb2.GenerateRequest(**values)


async def rest_of(stream: Any) -> AsyncIterator[generation_pb2.StreamGenerateResponse]:
    """What follows in a stream that was begun with `read`."""
    while (event := await stream.read()) is not grpc.aio.EOF:
        yield event


async def text_of(stream: Any) -> str:
    """The concatenated text of a stream's deltas."""
    return "".join([event.delta.text async for event in stream if event.WhichOneof("event") == "delta"])


async def refusal(call: Any) -> grpc.aio.AioRpcError:
    """The error that ends a call, unary or streaming."""

    async def to_the_end() -> None:
        if hasattr(call, "__aiter__"):
            async for _ in call:
                pass
        else:
            await call

    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await to_the_end()
    return caught.value


def error_info(error: grpc.aio.AioRpcError) -> error_details_pb2.ErrorInfo:
    """The ErrorInfo of a refusal."""
    return detail(error, error_details_pb2.ErrorInfo())


def bad_request(error: grpc.aio.AioRpcError) -> error_details_pb2.BadRequest:
    """The BadRequest of a refusal."""
    return detail(error, error_details_pb2.BadRequest())


def retry_hint_ms(error: grpc.aio.AioRpcError) -> int | None:
    """The pushback trailer; None without one."""
    value = dict(error.trailing_metadata() or ()).get("grpc-retry-pushback-ms")
    return None if value is None else int(value)


def detail(error: grpc.aio.AioRpcError, kind: Any) -> Any:
    """The detail of a refusal that is of the kind of `kind`, which it fills in."""
    encoded = dict(error.trailing_metadata() or ()).get("grpc-status-details-bin")
    assert encoded is not None, f"no details in {error.code()}: {error.details()}"
    for packed in status_pb2.Status.FromString(encoded).details:
        if packed.Unpack(kind):
            return kind
    raise AssertionError(f"no {type(kind).__name__} in {error.details()}")
