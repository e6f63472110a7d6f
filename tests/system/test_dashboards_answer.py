"""With a real Prometheus on a loaded server and its callers, no panel and no alert asks for what is not there."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from inferwire import AsyncClient, ClientConfig, Region
from inferwire.metrics import PrometheusObserver
from inferwire.settings import BreakerPolicy
from inferwire.testing import RESET, Script
from inferwire.v1 import inference_pb2_grpc
from inferwire_server.observability.gpus import GpuGauges, GpuReader
from inferwire_server.observability.metrics_page import MetricsPage
from inferwire_server.security.development_ca import write_development_certificates
from prometheus_client import CollectorRegistry

from tests.client.regions_of_fakes import config_of, fakes
from tests.recorded_nvml import RecordedNvml
from tests.server_process import server_process
from tests.serving import request
from tests.system.prometheus import Prometheus, Target, prometheus
from tools.ops_check.dashboards import queries
from tools.ops_check.queries import without_comparisons, without_variables
from tools.ops_check.rules_files import ALERTS, RULES, rules

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 120.0
TENANTS = """
[tenants.acme]
monthly_tokens = 100000000
max_output_tokens = 100
"""


def asked() -> dict[str, str]:
    """Every query of a panel, a rule or the condition of an alert, by where it stands."""
    found = {f"{at.dashboard}: {at.panel}: {at.text}": without_variables(at.text, "10s") for at in queries(ROOT)}
    found |= {f"{RULES}: {rule.name}": rule.name for rule in rules(ROOT, RULES)}
    for alert in rules(ROOT, ALERTS):
        found |= {f"{ALERTS}: {alert.name}: {side}": side for side in without_comparisons(alert.query)}
    return found


@contextmanager
def page(registry: CollectorRegistry) -> Iterator[int]:
    """A page of metrics; its port."""
    served = MetricsPage.serve(registry, "127.0.0.1", 0, None)
    try:
        yield served.port
    finally:
        served.close()


def recorded_gpus() -> CollectorRegistry:
    registry = CollectorRegistry()
    reader = GpuReader(lambda name: RecordedNvml())
    registry.register(GpuGauges(reader.read))
    return registry


async def call_for_ever(address: str) -> None:
    """Calls of two tenants: whole ones, streams that are left, invalid ones, and some over a quota."""
    async with grpc.aio.insecure_channel(address) as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        while True:
            for tenant in ("acme", "globex"):
                metadata = (("x-inferwire-tenant", tenant),)
                calls: list[Any] = [
                    stub.Generate(request(max_output_tokens=tokens), metadata=metadata) for tokens in (0, 8, 8, 101)
                ]
                left: Any = stub.StreamGenerate(request(max_output_tokens=90), metadata=metadata)
                asyncio.get_running_loop().call_later(0.1, left.cancel)
                await asyncio.wait([asyncio.ensure_future(call.code()) for call in (*calls, left)])


@asynccontextmanager
async def calling_services(address: str, registry: CollectorRegistry) -> AsyncIterator[None]:
    """Clients that are watched: of a server beside an endpoint where nobody listens, and of a pair of which one breaks
    every stream."""
    observer = PrometheusObserver(registry)
    touchy = BreakerPolicy(consecutive_failures=1, open_base_s=30.0)
    half_dead = ClientConfig(regions=(Region(name="eu", endpoints=("127.0.0.1:1", address)),), breaker=touchy)
    async with (
        fakes(Script(mishap=RESET, after_tokens=2), Script()) as pair,
        AsyncClient(half_dead, observer=observer) as ours,
        AsyncClient(config_of(*pair), observer=observer) as theirs,
    ):

        async def call() -> None:
            while True:
                await ours.generate("hi", model="scripted", max_output_tokens=4)
                async for _ in theirs.stream("hi"):
                    pass
                await asyncio.sleep(0.1)

        calling = asyncio.create_task(call())
        yield
        calling.cancel()
        await asyncio.wait([calling])
        assert calling.cancelled(), calling


async def unanswered(server: Prometheus, patience_s: float = PATIENCE_S) -> list[str]:
    """What has no series after that long; asked again until everything has."""
    end = time.monotonic() + patience_s
    while True:
        left = [where for where, query in asked().items() if not await server.query(query)]
        if not left or time.monotonic() >= end:
            return left
        await asyncio.sleep(1)


@pytest.mark.slow
@pytest.mark.system_package
@pytest.mark.timeout(240)
async def test_every_panel_rule_and_alert_is_answered(tmp_path: Path) -> None:
    tenants = tmp_path / "tenants.toml"
    tenants.write_text(TENANTS)
    write_development_certificates(tmp_path / "certs", regions=("us",), hosts=())
    folder = tmp_path / "certs" / "us"
    of_clients = CollectorRegistry()
    async with (
        server_process(
            region="eu", price_per_hour=3.6, tenants=tenants, metrics_tenants=json.dumps(["acme"])
        ) as loaded,
        server_process(region="us", tls_certificate=folder / "server.pem", tls_key=folder / "server-key.pem") as other,
        calling_services(loaded.address, of_clients),
    ):
        with page(of_clients) as clients_port, page(recorded_gpus()) as gpus_port:
            targets = [
                Target("inferwire", loaded.metrics_port, {"region": "eu"}),
                Target("inferwire", other.metrics_port, {"region": "us"}),
                Target("inferwire", gpus_port, {"region": "eu"}),
                Target("search", clients_port, {}),
            ]
            calling = asyncio.create_task(call_for_ever(loaded.address))
            async with prometheus(tmp_path, targets) as watching:
                left = await unanswered(watching)
                down = await watching.query("up == 0")
            calling.cancel()
            await asyncio.wait([calling])
    assert left == []
    assert down == []
