"""Closed loops of raw calls: no parsing while the clock runs, everything checked afterwards."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc
from inferwire.v1 import generation_pb2

_STREAM = "/inferwire.v1.InferenceService/StreamGenerate"
_UNARY = "/inferwire.v1.InferenceService/Generate"

Metadata = Sequence[tuple[str, str]]


@dataclass(slots=True)
class Received:
    """What came over the wire, encoded."""

    messages: list[bytes] = field(default_factory=list)
    calls: int = 0

    def check_streams(self, tokens_per_call: int) -> None:
        """Raise unless every stream was whole and all tokens came."""
        tokens = whole = 0
        for encoded in self.messages:
            event = generation_pb2.StreamGenerateResponse.FromString(encoded)
            tokens += event.delta.token_count
            whole += event.HasField("completed")
        _require(whole == self.calls, f"{self.calls - whole} of {self.calls} streams were cut off")
        _require(tokens == self.calls * tokens_per_call, f"{tokens} tokens came of {self.calls} x {tokens_per_call}")

    def check_replies(self, tokens_per_call: int) -> None:
        """Raise unless every reply had all its tokens."""
        replies = map(generation_pb2.GenerateResponse.FromString, self.messages)
        _require(all(r.usage.output_tokens == tokens_per_call for r in replies), "a reply was short")

    def tokens(self, first: int, last: int) -> int:
        """In the messages from `first` to before `last`, in the order of their coming."""
        events = map(generation_pb2.StreamGenerateResponse.FromString, self.messages[first:last])
        return sum(event.delta.token_count for event in events)

    @property
    def deltas(self) -> int:
        """Messages that carry tokens: all of a stream's but Started, Finished and Completed."""
        return len(self.messages) - 3 * self.calls


async def streams(
    channel: grpc.aio.Channel, requests: Sequence[bytes], *, at_once: int, into: Received | None = None
) -> Received:
    """Every request as a stream, `at_once` of them at a time; `into` can be looked at meanwhile."""
    call: Any = channel.unary_stream(_STREAM)
    received = Received() if into is None else into
    waiting = iter(requests)

    async def caller() -> None:
        for request in waiting:
            stream: Any = call(request)
            while (encoded := await stream.read()) is not grpc.aio.EOF:
                received.messages.append(encoded)
            received.calls += 1

    await asyncio.gather(*[caller() for _ in range(at_once)])
    return received


async def replies(
    channel: grpc.aio.Channel, requests: Sequence[bytes], *, at_once: int, metadata: Sequence[Metadata] = ()
) -> Received:
    """Every request as a unary call, `at_once` of them at a time; `metadata` is used in turn."""
    call: Any = channel.unary_unary(_UNARY)
    received = Received()
    waiting, in_turn = iter(requests), itertools.cycle(metadata or ((),))

    async def caller() -> None:
        for request in waiting:
            received.messages.append(await call(request, metadata=next(in_turn)))
            received.calls += 1

    await asyncio.gather(*[caller() for _ in range(at_once)])
    return received


def different_requests(number: int, tokens: int) -> list[bytes]:
    """Requests for exactly so many tokens, no two with the same beginning, so that none waits for another's prefix."""
    stop = generation_pb2.StopOptions(ignore_end_of_sequence=True)
    return [
        generation_pb2.GenerateRequest(
            model="scripted", prompt=f"{index:08d}: tell me about the sea.", max_output_tokens=tokens, stop=stop
        ).SerializeToString()
        for index in range(number)
    ]


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise RuntimeError(f"the measurement is not valid: {message}")
