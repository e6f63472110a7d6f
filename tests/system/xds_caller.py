"""Run by test_xds.py in a process of its own, since gRPC reads GRPC_XDS_BOOTSTRAP once.

Calls the target that it is given until its input ends, then prints what became of the calls as JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from typing import Any

import grpc
from inferwire import ClientConfig, ResilientChannel
from inferwire.v1 import generation_pb2, inference_pb2_grpc

CALLERS = 4
STREAM_TOKENS, UNARY_TOKENS = 60, 4


def _request(tokens: int) -> generation_pb2.GenerateRequest:
    request = generation_pb2.GenerateRequest(model="scripted", prompt="tell a story", max_output_tokens=tokens)
    request.sampling.seed = 3
    request.stop.ignore_end_of_sequence = True
    return request


async def _stream_for_ever(stub: Any, outcomes: Counter[str], texts: set[str]) -> None:
    while True:
        text = ""
        call = stub.StreamGenerate(_request(STREAM_TOKENS), timeout=30)
        try:
            async for event in call:
                text += event.delta.text
        except grpc.aio.AioRpcError as error:
            outcomes[f"stream: {error.code().name} {error.details()}"] += 1
            continue
        outcomes["streams"] += 1
        outcomes["resumed"] += any(key == "x-inferwire-resumed-at" for key, _ in await call.trailing_metadata())
        texts.add(text)


async def _ask_for_ever(stub: Any, outcomes: Counter[str]) -> None:
    while True:
        try:
            await stub.Generate(_request(UNARY_TOKENS), timeout=30)
        except grpc.aio.AioRpcError as error:
            outcomes[f"unary: {error.code().name} {error.details()}"] += 1
        else:
            outcomes["unary"] += 1
        await asyncio.sleep(0.02)


async def main(target: str) -> None:
    outcomes: Counter[str] = Counter()
    texts: set[str] = set()
    async with ResilientChannel(ClientConfig.for_address(target)) as channel:
        await channel.channel_ready()
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        work = [_stream_for_ever(stub, outcomes, texts) for _ in range(CALLERS)]
        tasks = [asyncio.create_task(each) for each in (*work, _ask_for_ever(stub, outcomes))]
        await asyncio.to_thread(sys.stdin.read)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    print(json.dumps({"outcomes": outcomes, "texts": sorted(texts)}))  # noqa: T201 the test reads it


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
