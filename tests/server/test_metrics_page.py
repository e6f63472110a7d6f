"""The page that Prometheus scrapes: where it is, what it answers, and that nobody can hold the server up by it."""

from __future__ import annotations

import asyncio
import socket
import threading
from typing import Any

import pytest
from inferwire_server.engines.scripted import ScriptedOptions
from inferwire_server.observability.loop_reading import LoopReading

from tests.polling import until
from tests.server.metrics_pages import Answer, answer, samples
from tests.serving import Serving, request, serving

PAGE: dict[str, Any] = {"metrics_enabled": True, "metrics_port": 0}


async def ask(server: Serving, path: str = "/metrics", method: str = "GET") -> Answer:
    port = server.server.metrics_port
    assert port is not None
    return await asyncio.to_thread(answer, port, path, method)


async def test_the_page_is_at_its_path_and_nowhere_else() -> None:
    async with serving(**PAGE) as server:
        page = await ask(server)
        assert page.status == 200
        assert page.headers["Content-Type"].startswith("text/plain; version=")
        for path in ("/", "/metrics/", "/Metrics", "/metrics/../metrics", "/prometheus/metrics", "/favicon.ico"):
            assert (await ask(server, path)).status == 404, path


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH"])
async def test_it_can_only_be_read(method: str) -> None:
    async with serving(**PAGE) as server:
        refused = await ask(server, method=method)
        assert (refused.status, refused.headers["Allow"]) == (405, "GET, HEAD")


async def test_the_alias_page_has_the_gauges_of_the_model_server_contract() -> None:
    options = ScriptedOptions(step_base_s=0.005, max_running=2, kv_blocks=512, block_tokens=16)
    async with serving(options, metrics_alias=True, **PAGE) as server:
        streams = [server.inference.StreamGenerate(request(max_output_tokens=4000)) for _ in range(3)]
        await until(lambda: server.sample("inferwire_running_generations") == 2)
        await until(lambda: server.sample("inferwire_waiting_generations") == 1)
        await until(lambda: server.sample("inferwire_kv_cache_usage_ratio") > 0)
        page = await ask(server, "/prometheus/metrics")
        for stream in streams:
            stream.cancel()
    found = {sample.name: sample.value for sample in samples(page.body)}
    assert {sample.labels["model_name"] for sample in samples(page.body)} == {"scripted@1"}
    used = found.pop("trtllm_kv_cache_utilization")
    assert 0 < used < 1
    assert found == {
        "trtllm_num_requests_waiting": 1,
        "trtllm_num_requests_running": 2,
        "trtllm_kv_cache_tokens_per_block": 16,
        "trtllm_kv_cache_max_blocks": 512,
    }


async def test_connections_that_say_nothing_keep_no_scrape_waiting() -> None:
    async with serving(**PAGE) as server:
        port = server.server.metrics_port
        assert port is not None
        silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(50)]
        try:
            assert (await ask(server)).status == 200
        finally:
            for each in silent:
                each.close()


async def test_a_price_shows_what_a_million_tokens_cost() -> None:
    async with serving(price_per_hour=3.6) as server:
        assert server.sample("inferwire_price_per_hour") == 3.6
        assert server.sample("inferwire_cost_per_million_tokens") == 0
        answered = await server.inference.Generate(request())
        tokens = answered.usage.prompt_tokens + answered.usage.output_tokens
        least, most = 0.001 * 1e-3, 0.001 * 600
        assert least < server.sample("inferwire_cost_per_million_tokens") * tokens / 1e6 < most


async def test_a_value_is_read_on_the_loop_whoever_asks() -> None:
    threads: list[int] = []

    def read() -> int:
        threads.append(threading.get_ident())
        return len(threads)

    reading = LoopReading(read, patience_s=20)
    reading.attach()
    assert await asyncio.to_thread(reading) == 2
    assert reading() == 3
    assert set(threads) == {threading.get_ident()}


async def test_a_loop_that_is_busy_leaves_the_latest_value_standing() -> None:
    values = iter(range(10))
    reading = LoopReading(lambda: next(values), patience_s=0.0)
    reading.attach()
    got: list[int] = []
    asking = threading.Thread(target=lambda: got.append(reading()))
    asking.start()
    asking.join(20)  # holds the loop
    assert got == [0]


async def test_what_reading_raises_reaches_the_thread_that_asked() -> None:
    faults: list[Exception] = []

    def read() -> int:
        if faults:
            raise faults[0]
        return 0

    reading = LoopReading(read, patience_s=20)
    reading.attach()
    faults.append(ValueError("no"))
    with pytest.raises(ValueError, match="no"):
        await asyncio.to_thread(reading)
