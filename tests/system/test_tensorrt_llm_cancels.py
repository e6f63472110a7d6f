"""A thousand streams cancelled at random points, on a real process with the stand-in: nothing of them stays behind."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

from tests.checkpoint_folder import report_of, write_checkpoint
from tests.standin_server import StandinServer, standin_server, toy_request

STREAMS = 1000
AT_ONCE = 80
"""More than the batch holds, so that some wait."""
BATCH = 64
ENDLESS = 500_000
"""Tokens of an output that no test lives to see the end of, so that every end is a cancel."""
MOST_EVENTS = 6


class Cancels:
    """Streams of several tenants and salts, each cancelled after a seeded number of its events."""

    def __init__(self, server: StandinServer) -> None:
        self._server = server
        self._random = random.Random(11)
        self._left = STREAMS
        self.served = 0
        """Streams that got tokens, so that the engine had them for certain."""

    async def run(self) -> None:
        """All of them, `AT_ONCE` at a time."""
        async with asyncio.TaskGroup() as group:
            for _ in range(AT_ONCE):
                group.create_task(self._one_after_another())

    async def _one_after_another(self) -> None:
        while self._left:
            self._left -= 1
            await self._one(self._left)

    async def _one(self, number: int) -> None:
        message = toy_request(f"{number} " * 10, max_output_tokens=ENDLESS, cache={"salt": f"s{number % 7}"})
        stream: Any = self._server.inference.StreamGenerate(
            message, metadata=(("x-inferwire-tenant", f"tenant-{number % 5}"),)
        )
        events = [await stream.read() for _ in range(self._random.randint(0, MOST_EVENTS))]
        self.served += any(event.WhichOneof("event") == "delta" for event in events)
        stream.cancel()


async def test_a_thousand_cancelled_streams_leave_nothing_behind(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, context_tokens=2 * ENDLESS, kv_blocks=2**24, step_s=0.01, writes_report=True)
    options = {"max_batch_size": BATCH}
    async with standin_server(folder, engine_options=options, canary_interval=3600) as server:
        cancels = Cancels(server)
        async with asyncio.timeout(50):
            await cancels.run()
        nothing = ("running_generations", "waiting_generations", "waiting_prompt_tokens", "engine_overdue_requests")
        await server.until_gauges({f"inferwire_{name}": 0.0 for name in (*nothing, "engine_engine_tasks")})
        gauges = await server.gauges()
        server.process.signal()
        assert await server.process.until_exit() == 0
    report = report_of(folder)
    taken = report["submitted"] - 1  # but for the one that proved the engine warm
    assert STREAMS // 2 < cancels.served <= taken <= STREAMS
    assert report["aborts"] == report["aborted_requests"] == gauges["inferwire_engine_aborted_requests"] == taken
    assert gauges["outcome:cancelled"] >= taken
    assert {"outcome:ok", "outcome:internal_error"}.isdisjoint(gauges)
    assert (report["live"], report["live_salts"], report["waiting_peak"], report["is_shut_down"]) == (0, 0, 0, True)
