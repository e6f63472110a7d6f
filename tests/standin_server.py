"""A real server process whose TensorRT-LLM is the stand-in."""

from __future__ import annotations

import asyncio
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health_pb2_grpc
from inferwire.v1 import generation_pb2, inference_pb2_grpc, model_pb2_grpc
from prometheus_client.parser import text_string_to_metric_families

from tests.checkpoint_folder import NAME
from tests.engines.tensorrt_llm.toy_checkpoint import STANDIN
from tests.server_process import ServerProcess, server_process


class StandinServer:
    """The process and one channel to it."""

    def __init__(self, process: ServerProcess) -> None:
        self.process = process
        self.channel = grpc.aio.insecure_channel(process.address)
        self.inference = inference_pb2_grpc.InferenceServiceStub(self.channel)
        self.models = model_pb2_grpc.ModelServiceStub(self.channel)
        self.health = health_pb2_grpc.HealthStub(self.channel)

    async def gauges(self) -> dict[str, float]:
        """What the metrics page says of the one model: samples by name, and outcomes as `outcome:ok`."""
        page = await asyncio.to_thread(self._page)
        samples = [sample for family in text_string_to_metric_families(page) for sample in family.samples]
        named = {sample.name: sample.value for sample in samples if set(sample.labels) == {"model"}}
        ended = [s for s in samples if s.name == "inferwire_generations_total" and s.value]
        outcomes = {f"outcome:{s.labels['outcome']}": s.value for s in ended}
        return named | outcomes

    async def until_gauges(self, expected: dict[str, float], within_s: float = 30.0) -> None:
        """Scrape until the page says so."""
        seen: dict[str, float | None] = {}
        try:
            async with asyncio.timeout(within_s):
                while seen != expected:
                    page = await self.gauges()
                    seen = {name: page.get(name) for name in expected}
        except TimeoutError:
            raise AssertionError(f"the gauges stay at {seen}") from None

    def _page(self) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.process.metrics_port}/metrics", timeout=20) as page:
            text: str = page.read().decode()
            return text


@asynccontextmanager
async def standin_server(folder: Path, **given: Any) -> AsyncIterator[StandinServer]:
    """Serve a checkpoint folder; what is given is for `server_process`."""
    async with server_process(engine="tensorrt-llm", packages=STANDIN, model=str(folder), **given) as process:
        server = StandinServer(process)
        try:
            yield server
        finally:
            await server.channel.close()


def toy_request(prompt: str | None = "tell a story", **fields: Any) -> generation_pb2.GenerateRequest:
    """A greedy request to the toy model for text and ids; 16 tokens unless told otherwise."""
    usual: dict[str, Any] = {"max_output_tokens": 16, "sampling": {"temperature": 0}, "output": {"token_ids": True}}
    return generation_pb2.GenerateRequest(**({"model": NAME, "prompt": prompt} | usual | fields))
