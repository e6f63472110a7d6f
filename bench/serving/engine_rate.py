"""Tokens a second of the whole service over those of its engine alone, on the same cores, in turns."""

from __future__ import annotations

import asyncio
import time
from statistics import median
from typing import Any

from inferwire.v1 import inference_pb2_grpc
from inferwire_server.domain.engine import Cancelled, Engine, EngineEvent, EngineRequest, Failed, Finished, Tokens
from inferwire_server.domain.generation import Sampling
from inferwire_server.models.errors import ModelError

from bench.figures import Figure, absent, figure_of
from bench.serving import real_model
from bench.serving.processes import ServerProcess
from bench.serving.real_model import RealModel
from bench.serving.turns import turns

PROMPT_TOKENS = 64
OUTPUT_TOKENS = 64
STREAMS = (1, 8, 32)
TURNS = 5
TIME_S = 30.0
"""For the turns of one number of streams."""


async def measure() -> list[Figure]:
    """One to two minutes."""
    model = real_model.find()
    if isinstance(model, ModelError):
        return [absent("tokens/s of the service over the engine alone", f"{model.problem}; {model.advice}")]
    async with model.engine() as engine, real_model.serving() as server, server.channel() as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        await _alone(engine, [tuple(model.ids(prompt)) for prompt in _prompts(model, 2, 1)])
        await _served(stub, server, _prompts(model, 2, 1))
        return [await _figure(model, engine, stub, server, streams) for streams in STREAMS]


async def _figure(model: RealModel, engine: Engine, stub: Any, server: ServerProcess, streams: int) -> Figure:
    alone, served, shares = [], [], []
    for turn in turns(TURNS, within_s=TIME_S):
        prompts = _prompts(model, streams, 1000 * streams + turn)
        alone.append(await _alone(engine, [tuple(model.ids(prompt)) for prompt in prompts]))
        rate, share = await _served(stub, server, prompts)
        served.append(rate)
        shares.append(share)
    return figure_of(
        f"tokens/s of the service over the engine alone, {streams} stream{'s' if streams > 1 else ''}",
        [whole / bare for whole, bare in zip(served, alone, strict=True)],
        at_least=0.95 if streams == 32 else None,
        detail=f"{median(served):.0f} of {median(alone):.0f} tokens/s; client {median(shares):.1%} of the CPU",
    )


def _prompts(model: RealModel, count: int, seed: int) -> list[str]:
    return [model.prompt(100 * seed + number, PROMPT_TOKENS) for number in range(count)]


async def _alone(engine: Engine, prompts: list[tuple[int, ...]]) -> float:
    tokens = 0
    ended: list[asyncio.Future[None]] = []

    def submit(number: int, prompt: tuple[int, ...]) -> None:
        end = asyncio.get_running_loop().create_future()
        ended.append(end)

        def sink(event: EngineEvent) -> None:
            nonlocal tokens
            if isinstance(event, Tokens):
                tokens += len(event.token_ids)
            elif isinstance(event, (Finished, Failed, Cancelled)):
                end.set_result(None)

        request = EngineRequest(
            id=f"bench/{number}",
            prompt_token_ids=prompt,
            max_output_tokens=OUTPUT_TOKENS,
            sampling=Sampling(temperature=0.0),
            ignore_end_of_sequence=True,
        )
        engine.submit(request, sink)

    began = time.monotonic()
    for number, prompt in enumerate(prompts):
        submit(number, prompt)
    await asyncio.gather(*ended)
    return tokens / (time.monotonic() - began)


async def _served(stub: Any, server: ServerProcess, prompts: list[str]) -> tuple[float, float]:
    """Tokens a second, and the client's share of all CPU time used."""
    client_s, server_s = time.process_time(), server.cpu_s()
    began = time.monotonic()
    counts = await asyncio.gather(
        *[real_model.count_tokens(stub, real_model.request(prompt, OUTPUT_TOKENS)) for prompt in prompts]
    )
    elapsed = time.monotonic() - began
    client_s, server_s = time.process_time() - client_s, server.cpu_s() - server_s
    return sum(counts) / elapsed, client_s / (client_s + server_s)
