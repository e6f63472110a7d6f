"""The admission workload on real processes: open-loop arrivals at twice the capacity, all variants at the same time.

The servers' engines are scripted and pretend to a speed, so the processes do not compete for it; what they do compete
for is a few percent of a core each.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from inferwire.v1 import generation_pb2, inference_pb2_grpc

from bench.figures import Figure
from bench.load.caller import CallOptions
from bench.load.open_loop import run
from bench.load.report import report
from bench.load.schedule import Schedule
from bench.serving.processes import ServerProcess, inferwire_server
from bench.simulation.workload import (
    FIRST_TOKEN_TARGET_S,
    LONGEST_PROMPT,
    MAX_OUTPUT_TOKENS,
    MEAN_OUTPUT_TOKENS,
    RPC_DEADLINE_S,
    SHORTEST_PROMPT,
    seeded,
)

SPEED = {
    "max_running": 32,
    "step_base_s": 0.01,
    "step_per_running_s": 0.00025,
    "prefill_chunk_tokens": 512,
    "prefill_tokens_per_s": 16_000,
}
LOAD = 2.0
DURATION_S = 60.0
WARM_UP_S = 15.0
CLOSED_LOOP_CLIENTS = 64
CLOSED_LOOP_S = 25.0
CLOSED_LOOP_WARM_UP_S = 5.0
PROMPT_REFUSAL_S = 0.02
VARIANTS: dict[str, Mapping[str, Any]] = {
    "as shipped": {},
    "no estimator": {"refuse_late": False},
    "no estimator, unbounded queue": {"refuse_late": False, "max_waiting": 1_000_000, "max_waiting_tokens": 10**9},
}


async def measure() -> list[Figure]:
    """Three minutes."""
    with tempfile.TemporaryDirectory() as folder:
        plans = Path(folder) / "plans.json"
        plans.write_text(json.dumps({"default": {"mean_output_tokens": MEAN_OUTPUT_TOKENS}}), encoding="utf-8")
        options = {**SPEED, "plans": str(plans)}
        async with AsyncExitStack() as stack:
            servers = {
                name: await stack.enter_async_context(
                    inferwire_server("--engine", "scripted", settings={"engine_options": options, **settings})
                )
                for name, settings in VARIANTS.items()
            }
            calls_per_s, tokens_per_s = await _capacity(servers["as shipped"])
        rate = LOAD * calls_per_s
        long = await _side_by_side(options, rate, (RPC_DEADLINE_S, RPC_DEADLINE_S))
        short = await _side_by_side(options, rate, (2.0, 10.0))
    return [*_figures(long, tokens_per_s), *_waste(short)]


async def _side_by_side(
    options: Mapping[str, Any], rate: float, deadline_s: tuple[float, float]
) -> dict[str, dict[str, Any]]:
    async with AsyncExitStack() as stack:
        servers = [
            await stack.enter_async_context(
                inferwire_server("--engine", "scripted", settings={"engine_options": options, **settings})
            )
            for settings in VARIANTS.values()
        ]
        reports = await asyncio.gather(*[_open_loop(server, rate, deadline_s) for server in servers])
    return dict(zip(VARIANTS, reports, strict=True))


async def _open_loop(server: ServerProcess, rate: float, deadline_s: tuple[float, float]) -> dict[str, Any]:
    schedule = Schedule(
        seed=2,
        rate=rate,
        duration_s=DURATION_S,
        prompt_tokens=(SHORTEST_PROMPT, LONGEST_PROMPT),
        deadline_s=deadline_s,
    )
    options = CallOptions(
        model="scripted",
        seed=2,
        max_output_tokens=MAX_OUTPUT_TOKENS,
        first_token_target_s=FIRST_TOKEN_TARGET_S,
        priority=generation_pb2.PRIORITY_STANDARD,
        tenant="",
    )
    records = await run(server.address, schedule.shots(), options)
    refused = [record for record in records if not record.is_served and record.first_token_at is None]
    at_once = sum(record.ended_at - record.sent_at <= PROMPT_REFUSAL_S for record in refused)
    figures = report(records, duration_s=DURATION_S, warm_up_s=WARM_UP_S, first_token_target_s=FIRST_TOKEN_TARGET_S)
    return figures | {"refused_at_once_share": at_once / max(1, len(refused))}


async def _capacity(server: ServerProcess) -> tuple[float, float]:
    """Calls and prompt + output tokens a second when somebody always waits."""
    rng = seeded(1)
    began = time.monotonic()
    ended: list[int] = []
    async with server.channel() as channel:
        stub: Any = inference_pb2_grpc.InferenceServiceStub(channel)

        async def client() -> None:
            while time.monotonic() - began < CLOSED_LOOP_S:
                request = generation_pb2.GenerateRequest(model="scripted", max_output_tokens=MAX_OUTPUT_TOKENS)
                request.token_ids.ids.extend(
                    rng.randint(32, 126) for _ in range(rng.randint(SHORTEST_PROMPT, LONGEST_PROMPT))
                )
                reply = await stub.Generate(request)
                if CLOSED_LOOP_WARM_UP_S <= time.monotonic() - began < CLOSED_LOOP_S:
                    ended.append(reply.usage.prompt_tokens + reply.usage.output_tokens)

        await asyncio.gather(*[client() for _ in range(CLOSED_LOOP_CLIENTS)])
    window_s = CLOSED_LOOP_S - CLOSED_LOOP_WARM_UP_S
    return len(ended) / window_s, sum(ended) / window_s


def _figures(reports: Mapping[str, Mapping[str, Any]], capacity: float) -> list[Figure]:
    figures = []
    for name, found in reports.items():
        is_shipped = name == "as shipped"
        share = found["goodput_tokens_per_s"] / capacity
        figures.append(
            Figure(
                name=f"goodput over capacity at {LOAD:g}x, {name}",
                value=share,
                at_least=0.95 if is_shipped else None,
                detail=f"{found['goodput_tokens_per_s']:.0f} of {capacity:.0f} tokens/s; first token p50 "
                f"{found['first_token_s']['p50']:.2f} s, p99 {found['first_token_s']['p99']:.2f} s",
            )
        )
        figures.append(
            Figure(
                name=f"tokens wasted at {LOAD:g}x, {name}",
                value=100 * found["wasted_tokens_share"],
                unit="%",
                at_most=2.0 if is_shipped else None,
                detail=_outcomes(found),
            )
        )
        refusals = found["refusal_s"]
        if is_shipped and refusals:
            figures.append(
                Figure(
                    name=f"refusals answered at {LOAD:g}x, p99",
                    value=1000 * refusals["p99"],
                    unit="ms",
                    at_most=1000 * PROMPT_REFUSAL_S,
                    detail=f"p50 {1000 * refusals['p50']:.0f} ms, {found['refused_at_once_share']:.0%} within "
                    f"{1000 * PROMPT_REFUSAL_S:.0f} ms; the others had waited for their turn",
                )
            )
    return figures


def _waste(reports: Mapping[str, Mapping[str, Any]]) -> list[Figure]:
    return [
        Figure(
            name=f"tokens wasted at {LOAD:g}x, RPC deadlines of 2 to 10 s, {name}",
            value=100 * found["wasted_tokens_share"],
            unit="%",
            detail=f"{found['goodput_tokens_per_s']:.0f} good tokens/s; {_outcomes(found)}",
        )
        for name, found in reports.items()
    ]


def _outcomes(found: Mapping[str, Any]) -> str:
    return ", ".join(f"{count} {outcome.rpartition('/')[2]}" for outcome, count in found["outcomes"].items())
