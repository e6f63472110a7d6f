"""The real model through a small full cache: no answer differs from its solo run."""

from __future__ import annotations

import random

import pytest
from inferwire_server.domain.engine import Engine
from inferwire_server.engines.openvino.options import Profile
from inferwire_server.models.version import ModelVersion

from tests.engines.openvino.engines import model_options, running
from tests.engines.openvino.soak import SMALL, Soak, questions, real_texts, solo_answers

REQUESTS = 200


@pytest.mark.real_model
@pytest.mark.timeout(1200)
@pytest.mark.asyncio(loop_scope="session")
async def test_no_answer_of_the_real_model_differs_from_its_solo_run(
    exact_engine: Engine, smollm2_f16: ModelVersion
) -> None:
    draw = random.Random(11)
    answers = await solo_answers(exact_engine, questions(real_texts(draw), 16, draw), 10)

    async with running(model_options(smollm2_f16, Profile.EXACT, **SMALL)) as small:
        report = await Soak(small, answers, draw).run(REQUESTS)

    assert not report.wrong, report
    assert report.compared + report.cancelled == REQUESTS
    assert report.most_blocks_reserved > SMALL["kv_blocks"] / 2
