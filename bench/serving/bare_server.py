"""The control: a grpc.aio server on uvloop that sends valid streams of the same contract and does nothing else.

    python -m bench.serving.bare_server PORT flood     tokens come from a counter, as fast as the stream takes them
    python -m bench.serving.bare_server PORT queue STEP_S
                                                       tokens come from the scripted engine, through a queue a stream

There is no interceptor, admission, fairness, detokeniser, deadline, metric, log line or cancellation handling here.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import uvloop
from inferwire.v1 import generation_pb2, inference_pb2_grpc
from inferwire_server.domain.engine import EngineEvent, EngineRequest, Finished, Tokens
from inferwire_server.domain.generation import Sampling
from inferwire_server.engines.scripted import ScriptedEngine, ScriptedOptions

Context = grpc.aio.ServicerContext[Any, Any]
Source = Callable[[int], AsyncIterator[int]]
"""The ids of an output of so many tokens."""


class BareServicer(inference_pb2_grpc.InferenceServiceServicer):
    """An async generator for a stream, one object for a reply."""

    def __init__(self, tokens: Source) -> None:
        self._tokens = tokens

    async def StreamGenerate(  # noqa: N802
        self, request: generation_pb2.GenerateRequest, context: Context
    ) -> AsyncIterator[generation_pb2.StreamGenerateResponse]:
        """Started, a Delta for each token, Finished, Completed."""
        count = request.max_output_tokens
        yield generation_pb2.StreamGenerateResponse(started=_started(count))
        offset = 0
        async for token_id in self._tokens(count):
            delta = generation_pb2.Delta(token_offset=offset, token_count=1, text=chr(token_id))
            yield generation_pb2.StreamGenerateResponse(delta=delta)
            offset += 1
        yield generation_pb2.StreamGenerateResponse(finished=_finished(count))
        yield generation_pb2.StreamGenerateResponse(completed=generation_pb2.Completed(usage=_usage(count)))

    async def Generate(  # noqa: N802
        self, request: generation_pb2.GenerateRequest, context: Context
    ) -> generation_pb2.GenerateResponse:
        """The same in one message."""
        count = request.max_output_tokens
        text = "".join([chr(token_id) async for token_id in self._tokens(count)])
        output = generation_pb2.Output(text=text, finished=_finished(count))
        return generation_pb2.GenerateResponse(outputs=[output], usage=_usage(count), started=_started(count))


def _started(count: int) -> generation_pb2.Started:
    return generation_pb2.Started(
        request_id="0123456789abcdef01234567",
        model="scripted@1",
        model_fingerprint="f" * 64,
        prompt_tokens=32,
        prompt_digest=b"d" * 32,
        max_output_tokens=count,
    )


def _finished(count: int) -> generation_pb2.Finished:
    return generation_pb2.Finished(reason=generation_pb2.FINISH_REASON_LENGTH, output_tokens=count)


def _usage(count: int) -> generation_pb2.Usage:
    return generation_pb2.Usage(prompt_tokens=32, output_tokens=count)


async def counted(count: int) -> AsyncIterator[int]:
    """Tokens at no cost, all at once."""
    for _ in range(count):
        yield 97


class QueuedTokens:
    """The scripted engine's tokens by one asyncio.Queue for each stream, as most servers do it."""

    def __init__(self, engine: ScriptedEngine) -> None:
        self._engine = engine
        self._requests = 0

    async def __call__(self, count: int) -> AsyncIterator[int]:
        self._requests += 1
        arrived: asyncio.Queue[int | None] = asyncio.Queue()

        def sink(event: EngineEvent) -> None:
            if isinstance(event, Tokens):
                for token_id in event.token_ids:
                    arrived.put_nowait(token_id)
            elif isinstance(event, Finished):
                arrived.put_nowait(None)

        request = EngineRequest(
            id=str(self._requests),
            prompt_token_ids=range(97, 122),
            max_output_tokens=count,
            sampling=Sampling(temperature=1.0, seed=self._requests),
            ignore_end_of_sequence=True,
        )
        self._engine.submit(request, sink)
        while (token_id := await arrived.get()) is not None:
            yield token_id


async def main() -> None:
    """Serve until killed."""
    port, mode, *rest = sys.argv[1:]
    source: Source = counted
    if mode == "queue":
        engine = ScriptedEngine(ScriptedOptions(step_base_s=float(rest[0]), max_running=64))
        await engine.start()
        source = QueuedTokens(engine)
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    inference_pb2_grpc.add_InferenceServiceServicer_to_server(BareServicer(source), server)  # type: ignore[abstract]
    server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    await server.wait_for_termination()


if __name__ == "__main__":
    uvloop.run(main())
