"""Load reports in trailers: gRPC's own weighted round robin sends more to the server that reports less."""

from __future__ import annotations

import json

import grpc
import pytest
from inferwire.v1 import inference_pb2_grpc
from inferwire_server.engines.scripted import ScriptedOptions

from tests.polling import until
from tests.serving import Serving, request, serving

POLICY = {
    "loadBalancingConfig": [
        {
            "weighted_round_robin": {
                "blackoutPeriod": "0s",
                "weightExpirationPeriod": "60s",
                "weightUpdatePeriod": "0.1s",
            }
        }
    ]
}
OPTIONS = ScriptedOptions(step_base_s=0.005, max_running=20)


def finished(server: Serving) -> float:
    return server.sample("inferwire_generations_total", model="scripted@1", outcome="ok")


@pytest.mark.timeout(120)
async def test_weighted_round_robin_splits_calls_by_the_load_that_servers_report() -> None:
    async with serving(OPTIONS, drain_limit=0.0) as busy, serving(OPTIONS, drain_limit=0.0) as idle:
        busy_calls = [busy.inference.StreamGenerate(request(max_output_tokens=8000)) for _ in range(18)]
        idle_calls = [idle.inference.StreamGenerate(request(max_output_tokens=8000)) for _ in range(2)]
        await until(lambda: busy.engine.load().running == 18 and idle.engine.load().running == 2)
        target = f"ipv4:{busy.address},{idle.address}"
        options = [("grpc.service_config", json.dumps(POLICY)), ("grpc.enable_retries", 0)]
        async with grpc.aio.insecure_channel(target, options=options) as channel:
            stub = inference_pb2_grpc.InferenceServiceStub(channel)
            short = request(max_output_tokens=1)
            for _ in range(60):
                await stub.Generate(short)
            before = finished(busy), finished(idle)
            for _ in range(200):
                await stub.Generate(short)
            to_busy, to_idle = finished(busy) - before[0], finished(idle) - before[1]
        for call in (*busy_calls, *idle_calls):
            call.cancel()
    assert to_busy + to_idle == 200
    assert 0.82 <= to_idle / 200 <= 0.96
