"""In the exact profile the real model says, token for token, what an independent implementation says."""

from __future__ import annotations

import pytest
from inferwire_server.domain.engine import Engine
from inferwire_server.domain.generation import Sampling
from inferwire_server.engines.openvino.options import Profile
from inferwire_server.models.version import ModelVersion

from tests.engines.openvino.conftest import ReferenceRow
from tests.engines.openvino.engines import model_options, running
from tests.engines.openvino.requests import a_request, run, run_together

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.real_model, pytest.mark.timeout(180)]


@pytest.mark.parametrize("index", range(8))
async def test_each_row_alone(exact_engine: Engine, reference_rows: list[ReferenceRow], index: int) -> None:
    row = reference_rows[index]

    recorder = await run(exact_engine, a_request(row.prompt, len(row.continuation), ignore_end_of_sequence=True))

    assert recorder.token_ids == row.continuation


async def test_all_rows_in_one_batch(exact_engine: Engine, reference_rows: list[ReferenceRow]) -> None:
    requests = [a_request(row.prompt, len(row.continuation), ignore_end_of_sequence=True) for row in reference_rows]

    recorders = await run_together(exact_engine, requests)

    assert [recorder.token_ids for recorder in recorders] == [row.continuation for row in reference_rows]


async def test_an_end_of_sequence_that_is_not_ignored_cuts_the_row(
    exact_engine: Engine, reference_rows: list[ReferenceRow]
) -> None:
    row = next(row for row in reference_rows if 2 in row.continuation)

    recorder = await run(exact_engine, a_request(row.prompt, len(row.continuation)))

    assert recorder.token_ids == row.continuation[: row.continuation.index(2)]
    assert recorder.finished.end_token_id == 2


async def test_seeds_give_the_same_tokens_alone_and_in_a_batch(
    exact_engine: Engine, reference_rows: list[ReferenceRow]
) -> None:
    requests = [
        a_request(row.prompt, 10, ignore_end_of_sequence=True, sampling=Sampling(temperature=1.2, seed=index))
        for index, row in enumerate(reference_rows[:4])
    ]

    alone = [(await run(exact_engine, request)).token_ids for request in requests]
    together = [recorder.token_ids for recorder in await run_together(exact_engine, requests)]

    assert together == alone


async def test_a_row_continues_from_any_cut(exact_engine: Engine, reference_rows: list[ReferenceRow]) -> None:
    row = reference_rows[1]
    cuts = range(1, len(row.continuation), 5)

    recorders = await run_together(
        exact_engine,
        [
            a_request(row.prompt, 6, ignore_end_of_sequence=True, resumed_token_ids=row.continuation[:cut])
            for cut in cuts
        ],
    )

    expected = [row.continuation[cut : cut + 6] for cut in cuts]
    assert [recorder.token_ids[: len(tail)] for recorder, tail in zip(recorders, expected, strict=True)] == expected


async def test_the_fast_profile_speaks_too(smollm2_q8_0: ModelVersion, reference_rows: list[ReferenceRow]) -> None:
    async with running(model_options(smollm2_q8_0, Profile.FAST)) as engine:
        recorder = await run(engine, a_request(reference_rows[0].prompt, 8, ignore_end_of_sequence=True))

        assert engine.capabilities.kv_blocks is not None
        assert engine.capabilities.kv_blocks > 1000
    assert len(recorder.token_ids) == 8
