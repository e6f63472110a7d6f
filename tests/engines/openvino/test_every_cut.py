"""An output of the real model that was cut anywhere goes on as if it had not been."""

from __future__ import annotations

import pytest
from inferwire_server.domain.engine import Engine
from inferwire_server.domain.generation import Sampling

from tests.engines.event_recorder import EventRecorder
from tests.engines.openvino.conftest import ReferenceRow
from tests.engines.openvino.requests import GREEDY, a_request, run, submitted, until

TOKENS = 48
HANG_S = 300.0

pytestmark = [
    pytest.mark.slow,
    pytest.mark.real_model,
    pytest.mark.timeout(1200),
    pytest.mark.asyncio(loop_scope="session"),
]


@pytest.mark.parametrize("index", range(8))
@pytest.mark.parametrize(
    "sampling", [GREEDY, Sampling(temperature=1.0, seed=2026)], ids=["greedy: appended", "sampled: regenerated"]
)
async def test_a_row_continues_from_each_of_its_tokens(
    exact_engine: Engine, reference_rows: list[ReferenceRow], index: int, sampling: Sampling
) -> None:
    prompt = reference_rows[index].prompt
    uncut = a_request(prompt, TOKENS, sampling=sampling, ignore_end_of_sequence=True)
    whole = (await run(exact_engine, uncut, HANG_S)).token_ids

    differing = []
    for cut, recorder in [await resumed(exact_engine, prompt, sampling, whole[:cut]) for cut in range(1, TOKENS)]:
        await recorder.until_ended(HANG_S)
        if recorder.token_ids != whole[cut:]:
            differing.append((cut, recorder.terminal))

    assert not differing


async def resumed(engine: Engine, prompt: list[int], sampling: Sampling, held: list[int]) -> tuple[int, EventRecorder]:
    """Submit the rest as soon as there is room."""
    request = a_request(
        prompt, TOKENS - len(held), sampling=sampling, ignore_end_of_sequence=True, resumed_token_ids=held
    )
    await until(lambda: engine.room_for([request]), HANG_S)
    return len(held), submitted(engine, request)[1]
