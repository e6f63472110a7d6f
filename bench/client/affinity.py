"""Whether calls that begin alike find the server whose cache has their beginning, and how evenly servers are used."""

from __future__ import annotations

import asyncio
from collections import Counter
from random import Random
from typing import Any

from inferwire import ClientConfig, Region, ResilientChannel
from inferwire.settings import AffinityPolicy
from inferwire.v1 import generation_pb2, inference_pb2_grpc

from bench.client.regions import servers
from bench.figures import Figure

PREFIXES, CALLS, AT_ONCE = 20, 1200, 24
_PREFIX_WORDS = 400
_SEED = 20


async def measure() -> list[Figure]:
    """About a minute."""
    alone, _ = await _run(1, AffinityPolicy())
    without, _ = await _run(4, AffinityPolicy(prefix_bytes=0))
    share, calls = await _run(4, AffinityPolicy())
    spread = max(calls.values()) / (sum(calls.values()) / 4)
    detail = f"{share:.3f} of all prompt tokens against {alone:.3f} of a single server; without affinity {without:.3f}"
    return [
        Figure(name="prefix-cache hits over a single server's", value=share / alone, at_least=0.9, detail=detail),
        Figure(
            name="calls of the busiest server over the mean",
            value=spread,
            at_most=1.25,
            detail=f"{CALLS} calls, {PREFIXES} prefixes, {AT_ONCE} at once, seed {_SEED}",
        ),
    ]


async def _run(number: int, affinity: AffinityPolicy) -> tuple[float, Counter[str]]:
    """The share of prompt tokens that came from a cache, and calls by endpoint."""
    async with servers(number) as running:
        region = Region(name="near", endpoints=tuple(server.address for server in running))
        async with ResilientChannel(ClientConfig(regions=(region,), affinity=affinity)) as channel:
            return await _calls(channel)


async def _calls(channel: ResilientChannel) -> tuple[float, Counter[str]]:
    draw = Random(_SEED)
    prefixes = [" ".join(f"w{draw.randrange(10_000)}" for _ in range(_PREFIX_WORDS)) for _ in range(PREFIXES)]
    stub: Any = inference_pb2_grpc.InferenceServiceStub(channel)
    places: Counter[str] = Counter()
    prompt_tokens = cached_tokens = 0
    waiting = iter([(draw.choice(prefixes), number) for number in range(CALLS)])

    async def caller() -> None:
        nonlocal prompt_tokens, cached_tokens
        for prefix, number in waiting:
            request = generation_pb2.GenerateRequest(
                model="scripted", prompt=f"{prefix} question {number}", max_output_tokens=4
            )
            call = stub.Generate(request, timeout=60)
            usage = (await call).usage
            prompt_tokens += usage.prompt_tokens
            cached_tokens += usage.cached_tokens
            places[dict(await call.trailing_metadata())["x-inferwire-served-by"]] += 1

    await asyncio.gather(*(caller() for _ in range(AT_ONCE)))
    return cached_tokens / prompt_tokens, places
