"""The fake server itself: real gRPC on a loopback socket."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc

from inferwire.background_loop import BackgroundLoop
from inferwire.testing.script import MODEL, Script, happen, play
from inferwire.v1 import (
    generation_pb2,
    inference_pb2,
    inference_pb2_grpc,
    model_pb2,
    model_pb2_grpc,
    operations_pb2,
    operations_pb2_grpc,
)

_HANG_BOUND_S = 30.0


@dataclass(slots=True)
class Received:
    """One call that has arrived."""

    method: str
    """The last part of its path."""
    request: Any
    metadata: dict[str, str | bytes]
    at: float
    """Monotonic seconds."""
    time_remaining_s: float | None
    ending: str = ""
    """`finished`, `failed` or `cancelled`; empty while it runs."""

    @property
    def attempt(self) -> int:
        """The number in the metadata, from 0."""
        return int(self.metadata.get("x-inferwire-attempt", 0))


@dataclass(slots=True)
class FakeServer:
    """A running fake. Give it other scripts at any time; calls that run keep theirs."""

    scripts: Sequence[Script]
    """One for each call that arrives; the last one stays."""
    address: str = ""
    models: Sequence[str] = (MODEL,)
    """The names that ListModels gives."""
    calls: list[Received] = field(default_factory=list)
    """Every generation that arrived, first to last; other RPCs are in `others`."""
    others: list[Received] = field(default_factory=list)
    connections: int = 0
    """Health watches that were opened: one for each channel that connected."""
    _is_serving: bool = True
    _server: Any = None
    _loop: asyncio.AbstractEventLoop | None = None
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def start(self) -> None:
        """Listen; again at the same address after `kill`."""
        server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        inference_pb2_grpc.add_InferenceServiceServicer_to_server(_Inference(self), server)
        model_pb2_grpc.add_ModelServiceServicer_to_server(_Models(self), server)
        operations_pb2_grpc.add_OperationsServiceServicer_to_server(_Operations(self), server)
        watch = grpc.unary_stream_rpc_method_handler(self._watch_health)  # type: ignore[var-annotated]
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("grpc.health.v1.Health", {"Watch": watch}),)
        )
        port = server.add_insecure_port(self.address or "127.0.0.1:0")
        self.address = self.address or f"127.0.0.1:{port}"
        self._server, self._loop = server, asyncio.get_running_loop()
        await server.start()

    async def kill(self) -> None:
        """Stop listening and cut every connection."""
        server, self._server = self._server, None
        if server is not None:
            await server.stop(None)
        self._wake()

    def hang(self, seconds: float) -> None:
        """Let its loop stand still, as a server's does that hangs: connections live, pings are answered, nothing else.

        Only for `blocking_fake_server`, whose loop is not the caller's.
        """
        if self._loop is None:
            raise RuntimeError("the server was not started")
        self._loop.call_soon_threadsafe(time.sleep, seconds)

    def say_serving(self, is_serving: bool) -> None:
        """Change what the health service says, as a server does that drains."""
        self._is_serving = is_serving
        self._wake()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Return when something about the calls is so. Raises TimeoutError after half a minute."""
        async with asyncio.timeout(_HANG_BOUND_S):
            while not condition():
                await self._changed.wait()

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """The same from another thread, for `blocking_fake_server`. Raises TimeoutError after half a minute."""
        if self._loop is None:
            raise RuntimeError("the server was not started")
        asyncio.run_coroutine_threadsafe(self.until(condition), self._loop).result(_HANG_BOUND_S)

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def _arrived(self, method: str, request: Any, context: Any, into: list[Received]) -> Received:
        metadata = dict(context.invocation_metadata() or ())
        received = Received(method, request, metadata, time.monotonic(), context.time_remaining())
        into.append(received)
        self._wake()
        return received

    def _ended(self, received: Received, ending: str) -> None:
        received.ending = ending
        self._wake()

    def _script(self) -> Script:
        return self.scripts[min(len(self.calls), len(self.scripts)) - 1]

    async def _watch_health(self, request: bytes, context: Any) -> AsyncIterator[bytes]:
        self.connections += 1
        self._wake()
        shown = None
        while True:
            if self._is_serving != shown:
                shown = self._is_serving
                yield b"\x08\x01" if shown else b"\x08\x02"
            else:
                await self._changed.wait()


@asynccontextmanager
async def fake_server(*scripts: Script) -> AsyncIterator[FakeServer]:
    """A fake on a free port of the loopback interface. Each call takes the next script; the last one stays."""
    server = FakeServer(scripts or (Script(),))
    await server.start()
    try:
        yield server
    finally:
        await server.kill()


@contextmanager
def blocking_fake_server(*scripts: Script) -> Iterator[FakeServer]:
    """The same in a thread of its own, for code without asyncio. Its coroutines are not for the caller's loop."""
    loop = BackgroundLoop("inferwire-fake-server")

    async def start() -> FakeServer:
        server = FakeServer(scripts or (Script(),))
        await server.start()
        return server

    server = loop.run(start())
    try:
        yield server
    finally:
        loop.stop(server.kill())


class _Inference(inference_pb2_grpc.InferenceServiceServicer):
    def __init__(self, fake: FakeServer) -> None:
        self._fake = fake

    async def Generate(self, request: Any, context: Any) -> Any:  # noqa: N802
        response = generation_pb2.GenerateResponse()
        output = response.outputs.add()
        async for event in self._events("Generate", request, context):
            kind = event.WhichOneof("event")
            if kind == "started":
                response.started.CopyFrom(event.started)
            elif kind == "delta":
                output.text += event.delta.text
                output.token_ids.extend(event.delta.token_ids)
            elif kind == "finished":
                output.finished.CopyFrom(event.finished)
            elif kind == "completed":
                response.usage.CopyFrom(event.completed.usage)
                response.timings.CopyFrom(event.completed.timings)
        return response

    async def StreamGenerate(self, request: Any, context: Any) -> Any:  # noqa: N802
        async for event in self._events("StreamGenerate", request, context):
            yield event

    async def Tokenize(self, request: Any, context: Any) -> Any:  # noqa: N802
        """A byte a token."""
        self._fake._arrived("Tokenize", request, context, self._fake.others)
        text = request.prompt or "".join(message.text for message in request.chat.messages)
        return inference_pb2.TokenizeResponse(token_ids=text.encode())

    async def Detokenize(self, request: Any, context: Any) -> Any:  # noqa: N802
        self._fake._arrived("Detokenize", request, context, self._fake.others)
        return inference_pb2.DetokenizeResponse(text=bytes(request.token_ids).decode(errors="replace"))

    async def GetServerInfo(self, request: Any, context: Any) -> Any:  # noqa: N802
        self._fake._arrived("GetServerInfo", request, context, self._fake.others)
        return inference_pb2.GetServerInfoResponse()

    async def _events(self, method: str, request: Any, context: Any) -> AsyncIterator[Any]:
        fake = self._fake
        received = fake._arrived(method, request, context, fake.calls)
        try:
            async for event in play(fake._script(), request, context):
                yield event
        except (asyncio.CancelledError, GeneratorExit):
            fake._ended(received, "cancelled")
            raise
        except grpc.aio.AbortError:
            fake._ended(received, "failed")
            raise
        fake._ended(received, "finished")


class _Models(model_pb2_grpc.ModelServiceServicer):
    def __init__(self, fake: FakeServer) -> None:
        self._fake = fake

    async def ListModels(self, request: Any, context: Any) -> Any:  # noqa: N802
        self._fake._arrived("ListModels", request, context, self._fake.others)
        return model_pb2.ListModelsResponse(models=[model_pb2.Model(name=name) for name in self._fake.models])

    async def GetModel(self, request: Any, context: Any) -> Any:  # noqa: N802
        self._fake._arrived("GetModel", request, context, self._fake.others)
        return model_pb2.Model(name=request.name)


class _Operations(operations_pb2_grpc.OperationsServiceServicer):
    def __init__(self, fake: FakeServer) -> None:
        self._fake = fake

    async def GetServerStatus(self, request: Any, context: Any) -> Any:  # noqa: N802
        self._fake._arrived("GetServerStatus", request, context, self._fake.others)
        return operations_pb2.GetServerStatusResponse()

    async def ListGenerations(self, request: Any, context: Any) -> Any:  # noqa: N802
        self._fake._arrived("ListGenerations", request, context, self._fake.others)
        return operations_pb2.ListGenerationsResponse()

    async def CancelGeneration(self, request: Any, context: Any) -> Any:  # noqa: N802
        self._fake._arrived("CancelGeneration", request, context, self._fake.others)
        return operations_pb2.CancelGenerationResponse()

    async def Drain(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Follows the script's mishap where there is one; else only what health says changes."""
        self._fake._arrived("Drain", request, context, self._fake.others)
        await happen(self._fake.scripts[-1].mishap, context)
        self._fake.say_serving(False)
        return operations_pb2.DrainResponse()

    async def WatchLoad(self, request: Any, context: Any) -> Any:  # noqa: N802
        """One report, then the script's mishap."""
        self._fake._arrived("WatchLoad", request, context, self._fake.others)
        yield operations_pb2.WatchLoadResponse()
        await happen(self._fake.scripts[-1].mishap, context)
