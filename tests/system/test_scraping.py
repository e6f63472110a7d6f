"""A server under load is scraped twenty times a second: what it says is never nonsense and stays bounded."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from typing import Any

import grpc
import pytest
from inferwire.v1 import inference_pb2_grpc
from prometheus_client.samples import Sample

from tests.gaps import Gaps, neighbours, percentile
from tests.server.metrics_pages import answer, samples, series
from tests.server_process import server_process
from tests.serving import request

CALLERS, WARM_UP_CALLS, MOST_SERIES = 24, 150, 1500
INTERVAL_S, ANSWER_BOUND_S = 0.05, 5.0
PACE = {"step_base_s": 0.005, "max_running": 8}
MOST_SLOWER = 3.0


class Callers:
    """Calls of every fate, under names of their own choice."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub = inference_pb2_grpc.InferenceServiceStub(channel)
        self._draw = random.Random(7)
        self.done = 0

    async def run(self) -> None:
        await asyncio.gather(*(self._one_after_another() for _ in range(CALLERS)))

    async def _one_after_another(self) -> None:
        fates = (self._whole, self._left, self._expired, self._invalid, self._of_no_model, self._urgent)
        while True:
            name = f"tenant-{self._draw.randrange(10**6)}"
            call: Any = self._draw.choice(fates)((("x-inferwire-tenant", name),))
            await asyncio.wait([asyncio.ensure_future(call.code())])
            self.done += 1

    def _whole(self, metadata: Any) -> Any:
        return self._stub.Generate(request(max_output_tokens=8), metadata=metadata)

    def _left(self, metadata: Any) -> Any:
        call: Any = self._stub.StreamGenerate(request(max_output_tokens=4000), metadata=metadata)
        asyncio.get_running_loop().call_later(self._draw.uniform(0, 0.2), call.cancel)
        return call

    def _expired(self, metadata: Any) -> Any:
        return self._stub.Generate(request(max_output_tokens=4000), timeout=0.1, metadata=metadata)

    def _invalid(self, metadata: Any) -> Any:
        return self._stub.Generate(request(max_output_tokens=0), metadata=metadata)

    def _of_no_model(self, metadata: Any) -> Any:
        return self._stub.Generate(request(model=metadata[0][1]), metadata=metadata)

    def _urgent(self, metadata: Any) -> Any:
        return self._stub.Generate(request(scheduling={"priority": 1}), metadata=metadata)


class Scraper:
    """Keeps the answers' times and what was wrong with any of them."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._before: dict[Any, float] = {}
        self.seconds: list[float] = []
        self.series: set[Any] = set()
        self.faults: list[str] = []

    def scrape(self) -> None:
        began = time.perf_counter()
        page = answer(self._port)
        self.seconds.append(time.perf_counter() - began)
        assert page.status == 200
        found = samples(page.body)
        self.series = series(found)
        self._check(found)

    def _check(self, found: list[Sample]) -> None:
        now = {(s.name, frozenset(s.labels.items())): s.value for s in found}
        self.faults += [f"{key} is {value}" for key, value in now.items() if not value >= 0]
        self.faults += [
            f"{key} fell from {self._before[key]} to {value}"
            for key, value in now.items()
            if key[0].endswith(("_total", "_count", "_bucket", "_sum")) and value < self._before.get(key, 0.0)
        ]
        self._before = now

    async def run(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        for number in itertools.count():
            due = time.monotonic() + INTERVAL_S
            await asyncio.to_thread(self.scrape)
            if time.monotonic() >= end and number >= 20:
                return
            await asyncio.sleep(max(0.0, due - time.monotonic()))


@pytest.mark.parametrize("seconds", [1.0, pytest.param(60.0, marks=[pytest.mark.slow, pytest.mark.timeout(200)])])
async def test_scrapes_beside_calls_of_every_fate(seconds: float, capsys: pytest.CaptureFixture[str]) -> None:
    async with (
        server_process(engine_options=PACE, max_waiting=20) as server,
        grpc.aio.insecure_channel(server.address) as channel,
    ):
        callers, scraper = Callers(channel), Scraper(server.metrics_port)
        calling = asyncio.create_task(callers.run())
        while callers.done < WARM_UP_CALLS:
            await asyncio.sleep(0.05)
            assert not calling.done()
        await asyncio.to_thread(scraper.scrape)
        known = scraper.series
        await scraper.run(seconds)
        calling.cancel()
        await asyncio.wait([calling])
    p50, p99 = (percentile(scraper.seconds, share) for share in (0.5, 0.99))
    said = f"{len(scraper.seconds)} scrapes of {len(known)} series beside {callers.done} calls"
    with capsys.disabled():
        print(f"\n{said}: p50 {p50 * 1e3:.0f} ms, p99 {p99 * 1e3:.0f} ms")  # noqa: T201 - a figure to be read
    assert scraper.faults == []
    assert scraper.series == known
    assert len(known) <= MOST_SERIES
    assert p99 <= ANSWER_BOUND_S


@pytest.mark.slow
@pytest.mark.timeout(180)
async def test_scrapes_do_not_hold_streams_up() -> None:
    """Twenty a second; measured a second time when the first was too slow, for the machine may have been busy."""
    async with (
        server_process(engine_options={"step_base_s": 0.02}) as server,
        grpc.aio.insecure_channel(server.address) as channel,
    ):

        async def scrape() -> None:
            assert (await asyncio.to_thread(answer, server.metrics_port)).status == 200
            await asyncio.sleep(INTERVAL_S)

        for _ in range(2):
            stub = inference_pb2_grpc.InferenceServiceStub(channel)
            async with Gaps().of(stub, neighbours("scripted", 4_000)) as gaps:
                await gaps.compare(scrape, rounds=3, phase_s=1.5)
            if gaps.ratio <= MOST_SLOWER:
                break
    assert gaps.ratio <= MOST_SLOWER, str(gaps)
