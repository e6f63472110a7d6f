"""Regenerated tokens are compared with what the reader holds, and only new ones are delivered."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from inferwire_server.domain.engine import Engine
from inferwire_server.domain.errors import ResumeLost
from inferwire_server.domain.generation import Sampling

from tests.engines.openvino.byte_model import token, tokens
from tests.engines.openvino.engines import byte_model_options, running
from tests.engines.openvino.requests import a_request, run, submitted, until
from tests.engines.openvino.table_model import Table, write_table_model

LETTERS = tokens("abcdef")
TABLE: Table = {last: {following: float(last * following % 7) for following in LETTERS} for last in LETTERS}
SAMPLED = Sampling(temperature=1.0, seed=11)

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Engine]:
    path = write_table_model(tmp_path_factory.mktemp("table") / "letters.gguf", TABLE)
    async with running(byte_model_options(path)) as engine:
        yield engine


async def test_a_sample_that_comes_out_differently_is_lost_and_leaves_the_engine(engine: Engine) -> None:
    whole = (await run(engine, a_request([LETTERS[0]], 12, sampling=SAMPLED))).token_ids
    held = [*whole[:5], next(letter for letter in LETTERS if letter != whole[5])]

    recorder = await run(engine, a_request([LETTERS[0]], 500, sampling=SAMPLED, resumed_token_ids=held))

    assert isinstance(recorder.failure, ResumeLost)
    assert recorder.failure.started
    assert recorder.token_ids == []
    await until(lambda: engine.load().running == 0)


async def test_an_output_that_ends_before_what_is_held_is_lost(engine: Engine) -> None:
    whole = (await run(engine, a_request([LETTERS[0]], 12, sampling=SAMPLED))).token_ids
    stops = frozenset({token("z"), whole[3]})

    request = a_request([LETTERS[0]], 4, sampling=SAMPLED, resumed_token_ids=whole[:8], stop_token_ids=stops)
    recorder = await run(engine, request)

    assert isinstance(recorder.failure, ResumeLost)


async def test_logprobs_of_what_is_held_are_swallowed_with_it(engine: Engine) -> None:
    whole = await run(engine, a_request([LETTERS[0]], 12, sampling=SAMPLED, top_logprobs=0))

    request = a_request([LETTERS[0]], 7, sampling=SAMPLED, top_logprobs=0, resumed_token_ids=whole.token_ids[:5])
    resumed = await run(engine, request)

    assert resumed.token_ids == whole.token_ids[5:]
    assert resumed.logprobs == whole.logprobs[5:]


async def test_cancelling_ends_a_replay(engine: Engine) -> None:
    whole = (await run(engine, a_request([LETTERS[0]], 300, sampling=SAMPLED))).token_ids

    stream, recorder = submitted(engine, a_request([LETTERS[0]], 1000, sampling=SAMPLED, resumed_token_ids=whole))
    stream.cancel()
    await until(lambda: engine.load().running == 0)

    assert recorder.token_ids == []
    assert len(recorder.terminals) == 1
