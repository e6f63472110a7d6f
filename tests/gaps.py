"""Streams beside a disturbance: how long they wait from one delta to the next, against the same streams undisturbed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from inferwire.v1 import generation_pb2

from tests.polling import until
from tests.serving import request

Disturbance = Callable[[], Awaitable[None]]
_LEAST_DELTAS = 20


class Gaps:
    """Seconds between deltas, of all streams together, by what went on when the later one came."""

    def __init__(self) -> None:
        self.control: list[float] = []
        self.disturbed: list[float] = []
        self._phase: list[float] = []
        self._delivered = 0

    @property
    def ratio(self) -> float:
        """The 99th percentile beside the disturbance, as a multiple of the one without."""
        return percentile(self.disturbed, 0.99) / percentile(self.control, 0.99)

    def __str__(self) -> str:
        figures = [
            f"{name} p50 {percentile(gaps, 0.5) * 1e3:.1f} p99 {percentile(gaps, 0.99) * 1e3:.1f} ms of {len(gaps)}"
            for name, gaps in (("control", self.control), ("disturbed", self.disturbed))
        ]
        return f"{', '.join(figures)}, ratio {self.ratio:.2f}"

    async def compare(self, disturb: Disturbance, *, rounds: int, phase_s: float) -> None:
        """Take turns: the streams alone, then beside the disturbance, made again and again for as long."""
        for _ in range(rounds):
            self._phase = self.control
            await asyncio.sleep(phase_s)
            self._phase = self.disturbed
            end = time.monotonic() + phase_s
            while time.monotonic() < end:
                await disturb()
        self._phase = []

    @asynccontextmanager
    async def of(self, stub: Any, messages: list[generation_pb2.GenerateRequest]) -> AsyncIterator[Gaps]:
        """Keep one stream of each request going, begun anew whenever it ends, while the body runs."""
        tasks = [asyncio.create_task(self._follow(stub, message)) for message in messages]
        try:
            await until(lambda: self._delivered > _LEAST_DELTAS * len(messages), within_s=60)
            yield self
            failed = [task for task in tasks if task.done()]
            assert not failed, f"a stream broke: {failed}"
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    async def _follow(self, stub: Any, message: generation_pb2.GenerateRequest) -> None:
        while True:
            last = None
            async for event in stub.StreamGenerate(message):
                if event.WhichOneof("event") != "delta":
                    continue
                now = time.monotonic()
                if last is not None:
                    self._phase.append(now - last)
                last = now
                self._delivered += 1


def neighbours(model: str, output_tokens: int) -> list[generation_pb2.GenerateRequest]:
    """Eight healthy streams that do not end before that many tokens."""
    return [
        request(
            f"The quick brown fox number {number}",
            model=model,
            max_output_tokens=output_tokens,
            sampling={"temperature": 0.0},
            stop={"ignore_end_of_sequence": True},
        )
        for number in range(8)
    ]


def percentile(values: list[float], share: float) -> float:
    """The value that this share of them does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
