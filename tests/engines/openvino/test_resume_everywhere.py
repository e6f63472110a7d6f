"""Every row of the reference, cut after each of its tokens, goes on as if it had never been cut."""

from __future__ import annotations

import pytest
from inferwire_server.domain.engine import Engine
from inferwire_server.domain.generation import Sampling

from tests.engines.openvino.conftest import ReferenceRow
from tests.engines.openvino.requests import a_request, run, run_together

AT_ONCE = 8

pytestmark = [
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.slow,
    pytest.mark.real_model,
    pytest.mark.timeout(900),
]


@pytest.mark.parametrize("index", range(8))
@pytest.mark.parametrize("sampled", [False, True], ids=["greedy by appending", "sampled by regenerating"])
async def test_a_row_goes_on_from_each_of_its_tokens(
    exact_engine: Engine, reference_rows: list[ReferenceRow], index: int, sampled: bool
) -> None:
    row = reference_rows[index]
    length = len(row.continuation)
    sampling = Sampling(temperature=1.0, seed=index) if sampled else Sampling(temperature=0.0)
    whole = a_request(row.prompt, length, ignore_end_of_sequence=True, sampling=sampling)
    uncut = tuple((await run(exact_engine, whole)).token_ids)
    assert len(uncut) == length
    if not sampled:
        assert uncut == tuple(row.continuation)
    wrong = []
    for first in range(1, length, AT_ONCE):
        cuts = range(first, min(length, first + AT_ONCE))
        requests = [
            a_request(
                row.prompt,
                length - cut,
                ignore_end_of_sequence=True,
                sampling=sampling,
                resumed_token_ids=uncut[:cut],
            )
            for cut in cuts
        ]
        recorders = await run_together(exact_engine, requests)
        wrong += [
            cut for cut, recorder in zip(cuts, recorders, strict=True) if tuple(recorder.token_ids) != uncut[cut:]
        ]
    assert not wrong
