"""Row 22: random faults, seeded, everything at once, on three regions of two: `python -m tests.chaos.soak`.

One region at a time is left in peace, and only once the client has seen that it is well. So nothing may be lost,
nothing may come twice, and nothing may be left behind.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from inferwire import AttemptEnded, Observer, ResilientChannel
from inferwire.channels import Fleet, Link
from inferwire.settings import FailoverPolicy, HedgePolicy, KeepalivePolicy, StallPolicy
from inferwire.v1 import inference_pb2_grpc

from tests.chaos.calls import Call, replied, story, streamed
from tests.chaos.places import Place, config_of, places

STORIES, TOKENS, CALLERS, TROUBLES = 24, 40, 8, 2
WARM_UP_SHARE = 0.25
ALLOWED_GROWTH_MIB = 20.0
PEACE_S = 8.0
"""How long a region stays the one in peace."""
SETTLING_LIMIT_S = 120.0
SOON = StallPolicy(
    progress_interval_s=0.2, first_token_s=2.0, between_tokens_s=1.0, decode_s=2.0, prefill_s=10.0, unary_s=1.0
)
KEEPALIVE = KeepalivePolicy(time_s=6.0, timeout_s=1.0, ping_timeout_s=1.0)


class Soak(Observer):
    """The calls, the faults, and what came of them."""

    def __init__(self, grid: list[list[Place]], draw: Random) -> None:
        self.grid = grid
        self.calls: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        self.attempts: Counter[str] = Counter()
        self.lost: list[str] = []
        self.doubled: list[str] = []
        self.different: list[str] = []
        self.longest_gap_s = 0.0
        self._draw = draw
        self._in_peace = 0
        self._spared: set[int] = set()
        self._expected: list[Call] = []

    def attempt_ended(self, attempt: AttemptEnded) -> None:
        """Count it, by its reason."""
        self.attempts["hedge" if attempt.is_hedge else attempt.reason or "OK"] += 1

    async def learn(self, channel: ResilientChannel) -> None:
        """What every story says without a fault."""
        self._expected = [await streamed(channel, story(number, tokens=TOKENS)) for number in range(STORIES)]
        assert all(call.error is None and len(call.ids) == TOKENS for call in self._expected)

    async def run(self, channel: ResilientChannel, until: float) -> None:
        """Calls and faults until a monotonic time, then peace everywhere."""
        over = asyncio.Event()
        asyncio.get_running_loop().call_later(max(0.0, until - time.monotonic()), over.set)
        async with asyncio.TaskGroup() as group:
            for _ in range(CALLERS):
                group.create_task(self._caller(channel, over))
            troubles = [group.create_task(self._trouble(over)) for _ in range(TROUBLES)]
            peace = asyncio.create_task(self._make_peace(channel.fleet()))
            await asyncio.gather(*troubles)
            peace.cancel()
            with suppress(asyncio.CancelledError):
                await peace
            self._spared.clear()
        links = channel.fleet().links
        async with asyncio.timeout(SETTLING_LIMIT_S):
            while not _are_well(links):
                await self._call(channel)

    async def _caller(self, channel: ResilientChannel, over: asyncio.Event) -> None:
        while not over.is_set():
            await self._call(channel)

    async def _call(self, channel: ResilientChannel) -> None:
        number, kind = self._draw.randrange(STORIES), self._draw.random()
        request = story(number, tokens=TOKENS)
        if kind < 0.15:
            await self._leave(channel, request)
            return
        call = await (replied if kind < 0.4 else streamed)(channel, request)
        name = "unary" if kind < 0.4 else "stream"
        self.calls[name] += 1
        if call.error is not None or not call.is_complete:
            self.lost.append(f"{name}: {call.error!r}")
            return
        self.longest_gap_s = max(self.longest_gap_s, call.longest_gap_s or 0.0)
        if call.offsets != list(range(TOKENS)):
            self.doubled.append(f"{name}: {call.offsets}")
        elif call.ids != self._expected[number].ids:
            self.different.append(f"{name}: {call.resumed_at}")

    async def _leave(self, channel: ResilientChannel, request: Any) -> None:
        """A reader that goes in the middle."""
        self.calls["left"] += 1
        stub: Any = inference_pb2_grpc.InferenceServiceStub(channel)
        running = stub.StreamGenerate(request, timeout=60)
        stays_for = self._draw.randrange(1, 20)
        with suppress(Exception):
            async for _ in running:
                stays_for -= 1
                if not stays_for:
                    break
        running.cancel()

    async def _make_peace(self, fleet: Fleet) -> None:
        """Another region is left in peace from time to time; faults go on in the others."""
        while True:
            await asyncio.sleep(PEACE_S)
            following = self._draw.choice([each for each in range(len(self.grid)) if each != self._in_peace])
            addresses = {place.address for place in self.grid[following]}
            before, self._in_peace = self._in_peace, following
            # Until the next one is seen to be well, the one before stays in peace too.
            self._spared.add(before)
            await fleet.until(partial(_are_well, [link for link in fleet.links if link.endpoint.target in addresses]))
            self._spared.discard(before)

    async def _trouble(self, over: asyncio.Event) -> None:
        while not over.is_set():
            regions = [each for each in range(len(self.grid)) if each != self._in_peace and each not in self._spared]
            free = [place for each in regions for place in self.grid[each] if not place.is_in_trouble]
            if not free:
                await asyncio.sleep(0.05)
                continue
            place = self._draw.choice(free)
            place.is_in_trouble = True
            try:
                await self._spoil(place)
            finally:
                place.is_in_trouble = False
            await asyncio.sleep(self._draw.uniform(0.0, 0.5))

    async def _spoil(self, place: Place) -> None:
        kinds = ("kill", "drain", "freeze", "hold", "cut", "reset", "half_close", "delay")
        kind = self._draw.choices(kinds, (2, 2, 3, 3, 3, 4, 4, 3))[0]
        self.faults[kind] += 1
        lasts_s = self._draw.uniform(0.2, 3.0)
        if kind == "kill":
            place.send(signal.SIGKILL)
            await asyncio.sleep(lasts_s)
            await place.restart()
        elif kind == "drain":
            await place.drained()
            await place.restart()
        elif kind == "freeze":
            place.send(signal.SIGSTOP)
            await asyncio.sleep(lasts_s)
            place.send(signal.SIGCONT)
        elif kind in ("reset", "half_close"):
            getattr(place.proxy, kind)()
        else:
            if kind == "delay":
                place.proxy.delay(self._draw.uniform(0.01, 0.2))
            else:
                getattr(place.proxy, kind)()
            await asyncio.sleep(lasts_s)
            place.proxy.heal()


def _are_well(links: Iterable[Link]) -> bool:
    return all(link.state.is_healthy and link.state.is_serving for link in links)


def footprint() -> tuple[float, int, int]:
    """Of this process: MiB, open descriptors, tasks."""
    gc.collect()
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    rss = next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS"))
    return rss, len(os.listdir("/proc/self/fd")), len(asyncio.all_tasks())


async def soak(minutes: float, seed: int) -> dict[str, Any]:
    """Run it; the figures."""
    async with places([{}, {}], [{}, {}], [{}, {}], drain_limit=5.0) as grid:
        subject = Soak(grid, Random(seed))
        config = config_of(
            grid,
            stall=SOON,
            keepalive=KEEPALIVE,
            hedge=HedgePolicy(enabled=True),
            failover=FailoverPolicy(return_after_s=2.0, slow_start_s=2.0),
        )
        async with ResilientChannel(config, observer=subject) as channel:
            await subject.learn(channel)
            seconds = 60.0 * minutes
            await subject.run(channel, time.monotonic() + seconds * WARM_UP_SHARE)
            before = footprint()
            await subject.run(channel, time.monotonic() + seconds * (1 - WARM_UP_SHARE))
            after = footprint()
    return {
        "row": "22",
        "minutes": minutes,
        "seed": seed,
        "n": sum(subject.calls.values()),
        "lost": len(subject.lost),
        "doubled": len(subject.doubled),
        "different": len(subject.different),
        "attempts": round(subject.attempts.total() / max(1, sum(subject.calls.values())), 3),
        "calls": dict(subject.calls),
        "faults": dict(subject.faults),
        "attempts_by_end": dict(subject.attempts),
        "longest_gap_ms": round(1000 * subject.longest_gap_s, 1),
        "mib": [round(before[0], 1), round(after[0], 1)],
        "descriptors": [before[1], after[1]],
        "tasks": [before[2], after[2]],
        "wrong": [*subject.lost, *subject.doubled, *subject.different][:5],
    }


def problems(figures: dict[str, Any]) -> list[str]:
    """What a clean run does not have."""
    found = [name for name in ("lost", "doubled", "different") if figures[name]]
    if figures["mib"][1] - figures["mib"][0] > ALLOWED_GROWTH_MIB:
        found.append("memory")
    if figures["descriptors"][1] > figures["descriptors"][0] + 8:
        found.append("descriptors")
    if figures["tasks"][1] > figures["tasks"][0] + 4:
        found.append("tasks")
    return found


def main() -> int:
    """Parse and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    figures = asyncio.run(soak(arguments.minutes, arguments.seed))
    found = problems(figures)
    sys.stdout.write(json.dumps(figures | {"problems": found}, indent=1) + "\n")
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main())
