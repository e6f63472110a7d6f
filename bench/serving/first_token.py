"""How soon the first token of the real model comes: after a start, with a cached prefix, and with company."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import Any

import grpc
from inferwire.v1 import inference_pb2_grpc
from inferwire_server.models.errors import ModelError

from bench.figures import Figure, absent, figure_of
from bench.serving import real_model
from bench.serving.real_model import RealModel, first_token_s, request
from bench.serving.turns import turns

LONG_PROMPT_TOKENS = 1000
SHARED_PROMPT_TOKENS = 640
TOGETHER = 4
TURNS = 5
TIME_S = 20.0
"""For the turns of one figure."""


async def measure() -> list[Figure]:
    """One to two minutes."""
    model = real_model.find()
    if isinstance(model, ModelError):
        return [absent("time to first token", f"{model.problem}; {model.advice}")]
    async with real_model.serving() as server, server.channel() as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        await first_token_s(stub, request(model.prompt(1, LONG_PROMPT_TOKENS), 1))
        figures = [await _cached_prefix(model, stub), await _together(model, stub)]
    return [*figures, await _start(model)]


async def _cached_prefix(model: RealModel, stub: Any) -> Figure:
    pairs = []
    for turn in turns(TURNS, within_s=TIME_S):
        message = request(model.prompt(100 + turn, LONG_PROMPT_TOKENS), 1)
        pairs.append((await first_token_s(stub, message), await first_token_s(stub, message)))
    cold, cached = sorted(pairs)[len(pairs) // 2]
    return figure_of(
        f"time to first token of a {LONG_PROMPT_TOKENS}-token prompt, cached over cold",
        [cached / cold for cold, cached in pairs],
        at_most=0.06,
        detail=f"{1000 * cached:.0f} of {1000 * cold:.0f} ms",
    )


async def _together(model: RealModel, stub: Any) -> Figure:
    ratios, detail = [], ""
    for turn in turns(TURNS, within_s=TIME_S):
        alone_s = await first_token_s(stub, request(model.prompt(200 + turn, SHARED_PROMPT_TOKENS), 1))
        message = request(model.prompt(300 + turn, SHARED_PROMPT_TOKENS), 1)
        began = time.monotonic()
        await asyncio.gather(*[first_token_s(stub, message) for _ in range(TOGETHER)])
        all_s = time.monotonic() - began
        ratios.append(all_s / alone_s)
        detail = f"{1000 * all_s:.0f} over {1000 * alone_s:.0f} ms in the last turn"
    return figure_of(
        f"four equal prompts of {SHARED_PROMPT_TOKENS} tokens at once, over one", ratios, at_most=1.6, detail=detail
    )


async def _start(model: RealModel) -> Figure:
    seconds = []
    for turn in turns(3, within_s=TIME_S, least=1):
        began = time.monotonic()
        async with real_model.serving(is_awaited=False) as server, server.channel() as channel:
            await _until_token(inference_pb2_grpc.InferenceServiceStub(channel), model.prompt(400 + turn, 16))
            seconds.append(time.monotonic() - began)
    return figure_of("start of `inferwire serve` to the first token", seconds, unit="s", at_most=6.0)


async def _until_token(stub: Any, prompt: str) -> None:
    while True:
        with suppress(grpc.aio.AioRpcError):
            await first_token_s(stub, request(prompt, 1))
            return
        await asyncio.sleep(0.02)
