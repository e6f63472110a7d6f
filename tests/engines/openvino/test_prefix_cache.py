"""A shared cache never mixes what two requests said.

The model has random weights and real attention, so a single foreign key or value in a sequence's cache shows.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from inferwire_server.domain.engine import Engine

from tests.engines.openvino import soak
from tests.engines.openvino.byte_model import VOCABULARY_SIZE
from tests.engines.openvino.engines import byte_model_options, running
from tests.engines.openvino.random_model import write_random_model
from tests.engines.openvino.requests import a_request, run, run_together, submitted, until
from tests.engines.openvino.soak import SMALL, Soak, questions, random_texts, solo_answers

ROUNDS = 30

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def uncached(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Engine]:
    path = write_random_model(tmp_path_factory.mktemp("random") / "random.gguf")
    async with running(byte_model_options(path, prefix_caching=False)) as engine:
        yield engine


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cached(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Engine]:
    path = write_random_model(tmp_path_factory.mktemp("random") / "random.gguf")
    async with running(byte_model_options(path, max_batched_tokens=64)) as engine:
        yield engine


def random_ids(draw: random.Random, count: int) -> list[int]:
    return [draw.randrange(3, VOCABULARY_SIZE) for _ in range(count)]


async def a_step_later(engine: Engine) -> None:
    before = engine.load().step_time_s
    await until(lambda: engine.load().step_time_s != before)


async def test_prompts_that_continue_the_same_cached_text_do_not_hear_each_other(
    cached: Engine, uncached: Engine
) -> None:
    draw = random.Random(1)
    wrong = []
    for _ in range(ROUNDS):
        text = random_ids(draw, draw.choice([33, 37, 45, 60]))
        prompts = [text + random_ids(draw, count) for count in (10, 13, 40)]
        expected = [(await run(uncached, a_request(prompt, 6))).token_ids for prompt in prompts]

        await run(cached, a_request(text, 1))
        together = await run_together(cached, [a_request(prompt, 6) for prompt in prompts])

        wrong += [each for each in zip(together, expected, strict=True) if each[0].token_ids != each[1]]
    assert not wrong


async def test_a_prompt_that_is_cancelled_while_it_is_read_leaves_no_garbage(cached: Engine, uncached: Engine) -> None:
    draw = random.Random(2)
    neighbour, _ = submitted(cached, a_request(random_ids(draw, 5), 3000))
    wrong = []
    for _ in range(ROUNDS):
        prompt = random_ids(draw, 200)
        expected = (await run(uncached, a_request(prompt, 6))).token_ids

        cancelled, _ = submitted(cached, a_request(prompt, 6))
        await a_step_later(cached)
        cancelled.cancel()
        again = await run(cached, a_request(prompt, 6))

        if again.token_ids != expected:
            wrong.append(again.token_ids)
    neighbour.cancel()
    assert not wrong


async def test_no_bit_of_a_logprob_depends_on_the_batch(uncached: Engine) -> None:
    draw = random.Random(3)
    # Together they fit into one step: a prompt's last token, read by itself, would be rounded in another way.
    requests = [a_request(random_ids(draw, 4 + count * 2), 12, top_logprobs=0) for count in range(12)]

    alone = [(await run(uncached, request)).logprobs for request in requests]
    together = [recorder.logprobs for recorder in await run_together(uncached, requests)]

    assert together == alone


async def test_equal_prompts_that_come_together_all_get_the_same(cached: Engine) -> None:
    prompt = random_ids(random.Random(4), 128)

    recorders = await run_together(cached, [a_request(prompt, 8) for _ in range(8)])

    assert len({tuple(recorder.token_ids) for recorder in recorders}) == 1


async def test_nothing_is_mixed_up_in_a_small_full_cache(
    uncached: Engine, tmp_path_factory: pytest.TempPathFactory
) -> None:
    draw = random.Random(5)
    answers = await solo_answers(uncached, questions(random_texts(draw), 150, draw), 24)
    path = write_random_model(tmp_path_factory.mktemp("random") / "random.gguf")

    async with running(byte_model_options(path, **SMALL)) as small:
        report = await Soak(small, answers, draw).run(1_000)

    assert not report.wrong, report
    assert report.compared + report.cancelled == 1_000
    assert report.cancelled > 100
    assert report.most_blocks_reserved > soak.SMALL["kv_blocks"] / 2
