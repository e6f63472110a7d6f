"""The registry of request ids stays within its bounds, however many ids it has seen."""

from __future__ import annotations

import time

import psutil
import pytest
from inferwire_server.domain.caller import Caller
from inferwire_server.domain.generation import Resume, ResumedOutput
from inferwire_server.domain.request import GenerationDraft, SamplingDraft
from inferwire_server.engines.scripted import ScriptedOptions
from inferwire_server.scheduling.generation_names import prompt_digest

from tests.serving import MODEL, Serving, serving

MIB = 1024 * 1024
IDS = 100_000
PROMPT = (65, 66, 67)
TENANTS = [Caller(tenant=f"tenant-{number}") for number in range(7)]


async def generate(server: Serving, number: int) -> None:
    """A generation under an id of its own, below the network, that needs no engine: its output was delivered before."""
    draft = GenerationDraft(
        model=MODEL,
        prompt=PROMPT,
        max_output_tokens=2,
        sampling=SamplingDraft(seed=number),
        request_id=f"job-{number}",
        resume=Resume(
            prompt_digest=prompt_digest(PROMPT),
            outputs=(ResumedOutput(output_index=0, token_ids=(66, 67), finished=True),),
        ),
        is_streaming=True,
    )
    caller = TENANTS[number % len(TENANTS)]
    async with await server.server.sessions.open(draft, caller, arrived_at=time.monotonic()) as reading:
        await reading.all()


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_a_hundred_thousand_ids_cost_no_more_than_the_bounds_say() -> None:
    async with serving(ScriptedOptions(step_base_s=0.0), replay_bytes=4 * MIB) as server:
        sessions, process = server.server.sessions, psutil.Process()
        for number in range(IDS // 5):
            await generate(server, number)
        warm = process.memory_info().rss
        for number in range(IDS // 5, IDS):
            await generate(server, number)
        assert sessions.replayable_bytes <= 4 * MIB
        assert 0 < sessions.num_replayable <= 10_000
        assert sessions.num_live == 0
        assert process.memory_info().rss - warm <= 20 * MIB
        assert server.outcomes() == {"ok": IDS}
