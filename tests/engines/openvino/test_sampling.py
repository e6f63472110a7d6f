"""Each sampling field does what the contract says, seen on logits that are written down."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from inferwire_server.domain.engine import Engine
from inferwire_server.domain.generation import Sampling

from tests.engines.openvino.byte_model import token
from tests.engines.openvino.engines import byte_model_options, running
from tests.engines.openvino.requests import a_request, run, run_together
from tests.engines.openvino.table_model import Table, write_table_model

A, B, C, D, E = map(token, "abcde")
THREE_WAYS = {A: 2.0, B: 1.0, C: 0.0}
TABLE: Table = {A: THREE_WAYS, B: THREE_WAYS, C: THREE_WAYS, D: {D: -1.0, E: -2.0}, E: {D: -1.0, E: -2.0}}
DRAWS = 2_000

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Engine]:
    path = write_table_model(tmp_path_factory.mktemp("table") / "three-ways.gguf", TABLE)
    async with running(byte_model_options(path)) as engine:
        yield engine


async def shares(engine: Engine, **sampling: Any) -> dict[int, float]:
    """How often each token is drawn."""
    settings = {"temperature": 1.0, "seed": 1} | sampling
    recorder = await run(engine, a_request([A], DRAWS, sampling=Sampling(**settings)))
    counts = Counter(recorder.token_ids)
    return {token_id: count / DRAWS for token_id, count in counts.items()}


def expected_shares(logits: dict[int, float], temperature: float) -> dict[int, float]:
    weights = {token_id: math.exp(logit / temperature) for token_id, logit in logits.items()}
    return {token_id: weight / sum(weights.values()) for token_id, weight in weights.items()}


@pytest.mark.parametrize(
    ("sampling", "logits", "temperature"),
    [
        pytest.param({}, THREE_WAYS, 1.0, id="plain"),
        pytest.param({"temperature": 0.5}, THREE_WAYS, 0.5, id="cooler"),
        pytest.param({"temperature": 3.0, "top_k": 3}, THREE_WAYS, 3.0, id="hotter among three"),
        pytest.param({"top_k": 2}, {A: 2.0, B: 1.0}, 1.0, id="two likeliest"),
        pytest.param({"top_p": 0.9}, {A: 2.0, B: 1.0}, 1.0, id="nucleus of two"),
        pytest.param({"top_p": 0.5}, {A: 2.0}, 1.0, id="nucleus of one"),
        pytest.param({"min_p": 0.2}, {A: 2.0, B: 1.0}, 1.0, id="a fifth of the likeliest"),
        pytest.param({"min_p": 1.0}, {A: 2.0}, 1.0, id="as likely as the likeliest"),
        pytest.param({"temperature": 1e-5}, {A: 2.0}, 1.0, id="almost greedy"),
        pytest.param({"temperature": 1e-30}, {A: 2.0}, 1.0, id="too small for 32 bits"),
        pytest.param({"temperature": 0.0}, {A: 2.0}, 1.0, id="greedy"),
    ],
)
async def test_draws_follow_the_distribution(
    engine: Engine, sampling: dict[str, Any], logits: dict[int, float], temperature: float
) -> None:
    drawn = await shares(engine, **sampling)

    expected = expected_shares(logits, temperature)
    assert set(drawn) == set(expected)
    assert all(drawn[token_id] == pytest.approx(share, abs=0.05) for token_id, share in expected.items())


@pytest.mark.parametrize(
    ("penalty", "expected"),
    [
        pytest.param({"repetition_penalty": 3.0}, "baaaaa", id="repetition: divides, the prompt counts"),
    ],
)
async def test_penalties_weigh_on_tokens_seen_before(engine: Engine, penalty: dict[str, Any], expected: str) -> None:
    recorder = await run(engine, a_request([A], 6, sampling=Sampling(temperature=0.0, **penalty)))

    assert recorder.token_ids == [token(letter) for letter in expected]


async def test_logprobs_are_the_models_own_whatever_the_temperature_and_penalties(engine: Engine) -> None:
    sampling = Sampling(temperature=2.5, seed=5, repetition_penalty=1.2, top_k=3)

    recorder = await run(engine, a_request([A], 50, sampling=sampling, top_logprobs=0))

    log_total = math.log(sum(map(math.exp, THREE_WAYS.values())))
    expected = [THREE_WAYS[token_id] - log_total for token_id in recorder.token_ids]
    assert [entry.token.logprob for entry in recorder.logprobs] == pytest.approx(expected, abs=1e-3)


async def test_seeds_give_the_same_tokens_alone_and_in_a_batch(engine: Engine) -> None:
    requests = [
        a_request([A], 40, sampling=Sampling(temperature=1.0, seed=seed), output_index=index)
        for seed in (0, 1, 2**32 - 1)
        for index in range(4)
    ]

    alone = [(await run(engine, request)).token_ids for request in requests]
    together = [recorder.token_ids for recorder in await run_together(engine, requests)]

    assert together == alone
    assert len(set(map(tuple, alone))) == len(requests)
