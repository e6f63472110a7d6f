"""The acts: what is done to the near region while the calls go on."""

from __future__ import annotations

import asyncio
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence

from tools.demo_regions.gates import DRAIN, GREY, GREY_CALLS, KILL, RECOVERY
from tools.demo_regions.servers import Server, start_all
from tools.demo_regions.tally import STREAMS, UNARY, Book, Way
from tools.demo_regions.traffic import Traffic

_LOOK_EVERY_S = 0.05
_BACK_AFTER = {Way.UNARY_DIRECT: 8, Way.STREAM_DIRECT: 4}
"""Calls in a row that the near region serves when it is back."""


class Overdue(Exception):
    """Something did not happen in a generous time; the message says what."""


class Play:
    """The near region's fate, act by act."""

    def __init__(
        self, book: Book, traffic: Traffic, near: Sequence[Server], *, pace_s: float, patience_s: float
    ) -> None:
        """`pace_s`: how long calls go on where nothing has to be waited for. `patience_s`: for anything else."""
        self.doing = ""
        """What is going on, for those who watch."""
        self._book = book
        self._traffic = traffic
        self._near = near
        self._pace_s = pace_s
        self._patience_s = patience_s

    async def perform(self) -> None:
        """Every act. Raises Overdue."""
        self.doing = "both regions serve"
        await self._until("the near region serves both ways", self._is_near_serving())
        await asyncio.sleep(self._pace_s)

        self._begin(DRAIN, "SIGTERM to every server of the near region")
        async with asyncio.TaskGroup() as draining:
            for server in self._near:
                draining.create_task(server.drain())
        self.doing = "the near region has stopped"
        await asyncio.sleep(self._pace_s / 2)
        await self._bring_back()

        self._begin(GREY, "the near region says SERVING and fails every call")
        self._signal(signal.SIGUSR1)
        await self._until(f"{GREY_CALLS} unary calls each way", self._has_enough_unary)
        self._signal(signal.SIGUSR2)
        self.doing = "the near region is well again, and still avoided"
        await self._until("the near region serves both ways", self._is_near_serving())

        self._begin(KILL, "SIGKILL to every server of the near region, in mid-stream")
        await self._until("streams have begun", lambda: all(self._traffic.begun[way] for way in STREAMS))
        async with asyncio.TaskGroup() as killing:
            for server in self._near:
                killing.create_task(server.kill())
        await self._until(
            "streams have gone on elsewhere", lambda: all(self._book.tally(way).resumed for way in STREAMS)
        )
        await asyncio.sleep(self._pace_s)

        self._begin(RECOVERY, "")
        await self._bring_back()
        await asyncio.sleep(self._pace_s / 2)

    def _begin(self, act: str, doing: str) -> None:
        self.doing = doing
        self._book.begin(act)

    def _signal(self, number: signal.Signals) -> None:
        for server in self._near:
            server.signal(number)

    async def _bring_back(self) -> None:
        self.doing = "the near region starts again"
        await start_all(self._near)
        self.doing = "the near region is up; its share grows"
        await self._until("the near region serves both ways", self._is_near_serving())

    def _is_near_serving(self) -> Callable[[], bool]:
        """From now on: so many calls in a row, each way, and none of the far region."""
        near = self._near[0].region
        before = self._served()

        def is_back() -> bool:
            nonlocal before
            now = self._served()
            if any(now[way].total() - now[way][near] > before[way].total() - before[way][near] for way in now):
                before = now
            return all(now[way][near] - before[way][near] >= _BACK_AFTER.get(way, 8) for way in now)

        return is_back

    def _served(self) -> dict[Way, Counter[str]]:
        """Calls by region: as inferwire's client counts them, and as Envoy does."""
        served = {way: self._book.tally(way).regions.copy() for way in _BACK_AFTER}
        return served | {Way.UNARY_ENVOY: self._traffic.envoy_sent.copy()}

    def _has_enough_unary(self) -> bool:
        # Those under way when it began may have been answered before.
        least = GREY_CALLS + self._traffic.callers
        return all(self._book.tally(way).calls >= least for way in UNARY)

    async def _until(self, what: str, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + self._patience_s
        while not condition():
            if time.monotonic() > deadline:
                raise Overdue(f"{self._book.act}: {what} did not come about within {self._patience_s:.0f} s")
            await asyncio.sleep(_LOOK_EVERY_S)
