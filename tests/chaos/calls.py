"""Calls under a fault, and what became of them: lost, doubled, different, and how long they were held up."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from inferwire import BlockingResilientChannel, ResilientChannel
from inferwire.v1 import generation_pb2, inference_pb2_grpc

from bench.quantiles import quantile

FULL = os.environ.get("CHAOS") == "full"
"""Set by `make chaos`: the large forms of the tests."""
TIMEOUT_S = 120.0


def size(short: int, full: int) -> int:
    """How many calls a test makes."""
    return full if FULL else short


@dataclass
class Call:
    """One call as its caller saw it."""

    ids: list[int] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    error: Exception | None = None
    is_complete: bool = False
    attempts: int = 0
    served_by: str = ""
    resumed_at: list[int] = field(default_factory=list)
    first_token_s: float = 0.0
    longest_gap_s: float | None = None
    """Between two deltas of a stream."""
    duration_s: float = 0.0

    def know(self, trailers: Any) -> None:
        """Note how it was served."""
        for key, value in trailers or ():
            if key == "x-inferwire-attempts":
                self.attempts = int(value)
            elif key == "x-inferwire-served-by":
                self.served_by = str(value)
            elif key == "x-inferwire-resumed-at":
                self.resumed_at.append(int(value))

    def see(self, event: generation_pb2.StreamGenerateResponse, began: float, last: float | None) -> float | None:
        """Note an event of a stream; returns when the latest delta came."""
        self.is_complete = self.is_complete or event.HasField("completed")
        if not event.HasField("delta"):
            return last
        now, delta = time.monotonic(), event.delta
        if last is None:
            self.first_token_s = now - began
        else:
            self.longest_gap_s = max(self.longest_gap_s or 0.0, now - last)
        self.offsets += range(delta.token_offset, delta.token_offset + delta.token_count)
        self.ids += delta.token_ids
        return now


def story(number: int, *, tokens: int = 40, model: str = "scripted", prompt: str = "story") -> Any:
    """A request that says the same wherever it runs."""
    request = generation_pb2.GenerateRequest(model=model, prompt=f"{prompt} {number}", max_output_tokens=tokens)
    request.stop.ignore_end_of_sequence = True
    request.sampling.seed, request.sampling.temperature, request.output.token_ids = number, 1.0, True
    return request


async def streamed(
    channel: ResilientChannel, request: Any, call: Call | None = None, *, timeout_s: float = TIMEOUT_S
) -> Call:
    """By StreamGenerate."""
    seen, began = call if call is not None else Call(), time.monotonic()
    running: Any = inference_pb2_grpc.InferenceServiceStub(channel).StreamGenerate(request, timeout=timeout_s)
    last: float | None = None
    try:
        async for event in running:
            last = seen.see(event, began, last)
    except Exception as error:  # noqa: BLE001 the test judges it
        seen.error = error
    seen.know(await running.trailing_metadata())
    seen.duration_s = time.monotonic() - began
    return seen


async def replied(
    channel: ResilientChannel, request: Any, call: Call | None = None, *, timeout_s: float = TIMEOUT_S
) -> Call:
    """By Generate."""
    seen, began = call if call is not None else Call(), time.monotonic()
    running: Any = inference_pb2_grpc.InferenceServiceStub(channel).Generate(request, timeout=timeout_s)
    try:
        response = await running
        seen.ids += response.outputs[0].token_ids
        seen.offsets += range(len(seen.ids))
        seen.is_complete = True
    except Exception as error:  # noqa: BLE001 the test judges it
        seen.error = error
    seen.know(await running.trailing_metadata())
    seen.duration_s = time.monotonic() - began
    return seen


def streamed_blocking(channel: BlockingResilientChannel, request: Any, call: Call | None = None) -> Call:
    """By StreamGenerate without asyncio."""
    seen, began = call if call is not None else Call(), time.monotonic()
    running: Any = inference_pb2_grpc.InferenceServiceStub(channel).StreamGenerate(request, timeout=TIMEOUT_S)
    last: float | None = None
    try:
        for event in running:
            last = seen.see(event, began, last)
    except Exception as error:  # noqa: BLE001 the test judges it
        seen.error = error
    seen.know(running.trailing_metadata())
    seen.duration_s = time.monotonic() - began
    return seen


async def side_by_side(
    channel: ResilientChannel, requests: Sequence[Any], *, unary: bool = False, strike: Callable[[], None] | None = None
) -> list[Call]:
    """All requests at once; `strike` once each stream has had tokens, or, of unary calls, all have been sent."""
    calls = [Call() for _ in requests]
    one = replied if unary else streamed
    pairs = zip(requests, calls, strict=True)
    running = [asyncio.create_task(one(channel, request, call)) for request, call in pairs]
    if strike is not None:
        if unary:
            await asyncio.sleep(0.15)
        else:
            await _until_under_way(calls, running)
        strike()
    await asyncio.gather(*running)
    return calls


async def _until_under_way(calls: Sequence[Call], running: Sequence[asyncio.Task[Call]]) -> None:
    while not all(len(call.ids) >= 3 or task.done() for call, task in zip(calls, running, strict=True)):  # noqa: ASYNC110
        await asyncio.sleep(0.005)


@dataclass
class Tally:
    """Calls under a fault beside the same calls without one."""

    calls: list[Call]
    undisturbed: list[Call] | None = None

    @property
    def lost(self) -> int:
        """Failed, or not whole."""
        return sum(call.error is not None or not call.is_complete or self._has_gap(call) for call in self.calls)

    @property
    def doubled(self) -> int:
        """With a token that came twice."""
        return sum(len(set(call.offsets)) < len(call.offsets) for call in self.calls)

    @property
    def different(self) -> int:
        """With other tokens than without the fault."""
        if self.undisturbed is None:
            return 0
        pairs = zip(self.calls, self.undisturbed, strict=True)
        return sum(one.ids != other.ids for one, other in pairs)

    @property
    def attempts(self) -> float:
        """A call, in the mean."""
        return sum(call.attempts for call in self.calls) / len(self.calls)

    @property
    def errors(self) -> set[str]:
        """What went wrong, for a test that fails."""
        return {str(call.error) for call in self.calls if call.error is not None}

    def figures(self, row: str, *, seed: int = 0, **more: Any) -> dict[str, Any]:
        """For the report. Gaps, in milliseconds, are those of streams that needed more than one attempt."""
        gap_s = [call.longest_gap_s for call in self.calls if call.attempts > 1 and call.error is None]
        moved = [1000 * each for each in gap_s if each is not None]
        gaps = {name: round(quantile(moved, share), 1) for name, share in (("p50", 0.5), ("p99", 0.99), ("max", 1.0))}
        return {
            "row": row,
            "seed": seed,
            "n": len(self.calls),
            "lost": self.lost,
            "doubled": self.doubled,
            "different": self.different,
            "attempts": round(self.attempts, 3),
            "moved": len(gap_s),
            "gap_ms": gaps if moved else None,
            **more,
        }

    @staticmethod
    def _has_gap(call: Call) -> bool:
        return sorted(set(call.offsets)) != list(range(len(set(call.offsets))))


def assert_whole(tally: Tally) -> None:
    """Gate: nothing lost, nothing doubled, and token for token as without the fault."""
    assert tally.errors == set()
    assert (tally.lost, tally.doubled, tally.different) == (0, 0, 0)
