"""What holding the output to a JSON schema costs in tokens a second."""

from __future__ import annotations

import asyncio
import json
import time
from statistics import median
from typing import Any

from inferwire.v1 import generation_pb2, inference_pb2_grpc
from inferwire_server.models.errors import ModelError

from bench.figures import Figure, absent, figure_of
from bench.serving import real_model
from bench.serving.processes import inferwire_server
from bench.serving.turns import turns

STREAMS = 8
OUTPUT_TOKENS = 64
TURNS = 5
TIME_S = 20.0
"""For the turns of one engine."""
SCHEMA = json.dumps(
    {
        "type": "array",
        "minItems": 40,
        "items": {
            "type": "object",
            "properties": {"name": {"type": "string"}, "age": {"type": "integer"}, "is_member": {"type": "boolean"}},
            "required": ["name", "age", "is_member"],
            "additionalProperties": False,
        },
    }
)
"""So many items that no output ends before its length."""


async def measure() -> list[Figure]:
    """Half a minute."""
    scripted = inferwire_server("--engine", "scripted", settings={"engine_options": {"step_base_s": 0.0}})
    async with scripted as server, server.channel() as channel:
        figures = [await _figure("scripted", channel, "scripted")]
    model = real_model.find()
    if isinstance(model, ModelError):
        return [*figures, absent("JSON schema over plain, OpenVINO", f"{model.problem}; {model.advice}")]
    async with real_model.serving() as server, server.channel() as channel:
        return [*figures, await _figure("OpenVINO", channel, real_model.NAME)]


async def _figure(engine: str, channel: Any, model: str) -> Figure:
    stub = inference_pb2_grpc.InferenceServiceStub(channel)
    rates: dict[bool, list[float]] = {False: [], True: []}
    await _rate(stub, model, turn=TURNS, is_structured=True)
    for turn in turns(TURNS, within_s=TIME_S):
        for is_structured, measured in rates.items():
            measured.append(await _rate(stub, model, turn=turn, is_structured=is_structured))
    return figure_of(
        f"tokens/s held to a JSON schema over plain, {engine}, {STREAMS} streams",
        [held / plain for plain, held in zip(rates[False], rates[True], strict=True)],
        detail=f"{median(rates[True]):.0f} of {median(rates[False]):.0f} tokens/s",
    )


async def _rate(stub: Any, model: str, *, turn: int, is_structured: bool) -> float:
    requests = [_request(model, 100 * turn + 10 * is_structured + number, is_structured) for number in range(STREAMS)]
    began = time.monotonic()
    counts = await asyncio.gather(*[real_model.count_tokens(stub, request) for request in requests])
    return sum(counts) / (time.monotonic() - began)


def _request(model: str, number: int, is_structured: bool) -> generation_pb2.GenerateRequest:
    prompt = f"{number}: list the members of the club as JSON."
    request = generation_pb2.GenerateRequest(model=model, prompt=prompt, max_output_tokens=OUTPUT_TOKENS)
    request.sampling.temperature = 0.0
    if is_structured:
        request.structured_output.json_schema = SCHEMA
    else:
        request.stop.ignore_end_of_sequence = True
    return request
