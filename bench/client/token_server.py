"""A server that streams ready-made tokens as fast as it is read: `python -m bench.client.token_server PORT`."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from typing import Any

import grpc
from inferwire.v1 import generation_pb2

TOKENS = 400
_EVENT = generation_pb2.StreamGenerateResponse


def stream_of(*, with_ids: bool) -> list[bytes]:
    """The events of a whole stream, as on the wire."""
    started = generation_pb2.Started(request_id="r", model="m", model_fingerprint="f", prompt_digest=b"d", seed=7)
    events = [_EVENT(started=started)]
    for position in range(TOKENS):
        delta = generation_pb2.Delta(token_offset=position, token_count=1, text=" word")
        if with_ids:
            delta.token_ids.append(position % 50_000)
        events.append(_EVENT(delta=delta))
    events.append(
        _EVENT(finished=generation_pb2.Finished(reason=generation_pb2.FINISH_REASON_LENGTH, output_tokens=TOKENS))
    )
    events.append(_EVENT(completed=generation_pb2.Completed()))
    return [event.SerializeToString() for event in events]


async def serve(port: int) -> None:
    """Until the process is ended."""
    streams = {with_ids: stream_of(with_ids=with_ids) for with_ids in (False, True)}
    reply = generation_pb2.GenerateResponse(outputs=[generation_pb2.Output(text="a reply of some words")])
    encoded = reply.SerializeToString()

    async def generate(request: bytes, context: Any) -> bytes:
        return encoded

    async def stream_generate(request: bytes, context: Any) -> AsyncIterator[bytes]:
        for event in streams[generation_pb2.GenerateRequest.FromString(request).output.token_ids]:
            yield event

    unary: Any = grpc.unary_unary_rpc_method_handler(generate)
    streaming: Any = grpc.unary_stream_rpc_method_handler(stream_generate)
    handlers = {"Generate": unary, "StreamGenerate": streaming}
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("inferwire.v1.InferenceService", handlers),))
    server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1])))
