"""What hedging does to first tokens of which a few are slow."""

from __future__ import annotations

import time
from random import Random
from typing import Any

from inferwire import ClientConfig, Region, ResilientChannel
from inferwire.settings import HedgePolicy
from inferwire.testing import Script, fake_server
from inferwire.v1 import generation_pb2, inference_pb2_grpc

from bench.figures import Figure
from bench.quantiles import quantile

CALLS = 1000
SLOW_SHARE, SLOW_S, USUAL_S = 0.03, 1.0, 0.02
DELAY_S = 0.1
_SEED = 5
_LEARNING = 40


async def measure() -> list[Figure]:
    """About a minute."""
    plain, _ = await _first_tokens(HedgePolicy())
    hedged, attempts = await _first_tokens(HedgePolicy(enabled=True, min_delay_s=DELAY_S))
    p50, p99 = quantile(hedged, 0.5), quantile(hedged, 0.99)
    aim = 1000 * DELAY_S + 1.2 * p50
    detail = f"p50 {p50:.0f} ms; without hedging p99 {quantile(plain, 0.99):.0f} ms; {CALLS} calls, seed {_SEED}"
    return [
        Figure(name="3 % slow: first token p99", value=p99, unit="ms", at_most=aim, detail=detail),
        Figure(
            name="3 % slow: attempts more", value=attempts / CALLS - 1.0, at_most=0.05, detail=f"{attempts} attempts"
        ),
    ]


async def _first_tokens(hedge: HedgePolicy) -> tuple[list[float], int]:
    """Milliseconds, of those after the client has learnt what is usual; and all attempts."""
    draw = Random(_SEED)
    slow, usual = Script(first_token_delay_s=SLOW_S), Script(first_token_delay_s=USUAL_S)
    scripts = [slow if draw.random() < SLOW_SHARE else usual for _ in range(CALLS)]
    times: list[float] = []
    async with fake_server(*scripts) as near, fake_server(usual) as far:
        regions = (
            Region(name="near", endpoints=(near.address,)),
            Region(name="far", endpoints=(far.address,), priority=1),
        )
        async with ResilientChannel(ClientConfig(regions=regions, hedge=hedge)) as channel:
            stub: Any = inference_pb2_grpc.InferenceServiceStub(channel)
            for _ in range(CALLS):
                began = time.perf_counter()
                has_token = False
                async for event in stub.StreamGenerate(generation_pb2.GenerateRequest(model="fake", prompt="hi")):
                    if event.HasField("delta") and not has_token:
                        has_token = True
                        times.append(1000 * (time.perf_counter() - began))
        return times[_LEARNING:], len(near.calls) + len(far.calls)
