"""What OpenVINO GenAI would take without a word is refused, and harms nobody."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from inferwire_server.domain.engine import Cancelled, Engine
from inferwire_server.domain.errors import CapabilityAbsent, InvalidRequest, Overloaded, ServiceError
from inferwire_server.domain.generation import Grammar, GrammarKind, Sampling

from tests.engines.event_recorder import EventRecorder
from tests.engines.openvino.byte_model import VOCABULARY_SIZE, token, tokens
from tests.engines.openvino.engines import byte_model_options, running
from tests.engines.openvino.requests import a_request, run, submitted, until
from tests.engines.openvino.table_model import Table, write_table_model

CONTEXT = 512
TABLE: Table = {token("a"): {token("b"): 5.0}, token("b"): {token("a"): 5.0}}
PROMPT = tokens("a")
ANY_REGEX = Grammar(kind=GrammarKind.REGEX, source="[ab]{4}")

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Engine]:
    path = write_table_model(tmp_path_factory.mktemp("table") / "ab.gguf", TABLE)
    async with running(byte_model_options(path, kv_blocks=14, max_context_tokens=CONTEXT, max_running=3)) as engine:
        yield engine


def sampling(**changes: Any) -> dict[str, Sampling]:
    return {"sampling": Sampling(**{"temperature": 1.0} | changes)}


@pytest.mark.parametrize(
    ("field", "changes"),
    [
        ("prompt", {"prompt": []}),
        ("prompt", {"prompt": [-1]}),
        ("prompt", {"prompt": [*PROMPT, VOCABULARY_SIZE]}),
        ("prompt", {"prompt": [2**63]}),
        ("prompt", {"prompt": PROMPT * CONTEXT}),
        ("max_output_tokens", {"limit": 0}),
        ("max_output_tokens", {"limit": -5}),
        ("max_output_tokens", {"limit": CONTEXT}),
        ("max_output_tokens", {"limit": 400}),
        ("max_output_tokens", {"prompt": PROMPT * (CONTEXT - 8), "resumed_token_ids": PROMPT}),
        ("resume.outputs", {"resumed_token_ids": [VOCABULARY_SIZE]}),
        ("stop.token_ids", {"stop_token_ids": frozenset({VOCABULARY_SIZE})}),
        ("stop.token_ids", {"stop_token_ids": frozenset({-1})}),
        ("stop.min_output_tokens", {"min_output_tokens": 9}),
        ("stop.min_output_tokens", {"min_output_tokens": -1}),
        ("stop.min_output_tokens", {"min_output_tokens": 2, "grammar": ANY_REGEX}),
        ("stop.ignore_end_of_sequence", {"ignore_end_of_sequence": True, "grammar": ANY_REGEX}),
        ("structured_output.choices", {"grammar": Grammar(kind=GrammarKind.CHOICES)}),
        ("structured_output.choices", {"grammar": Grammar(kind=GrammarKind.CHOICES, texts=("a\0b",))}),
        ("sampling.temperature", sampling(temperature=-0.1)),
        ("sampling.temperature", sampling(temperature=math.nan)),
        ("sampling.temperature", sampling(temperature=math.inf)),
        ("sampling.top_p", sampling(top_p=0.0)),
        ("sampling.top_p", sampling(top_p=1.0001)),
        ("sampling.top_p", sampling(top_p=math.nan)),
        ("sampling.top_k", sampling(top_k=-1)),
        ("sampling.min_p", sampling(min_p=1.1)),
        ("sampling.repetition_penalty", sampling(repetition_penalty=0.0)),
        ("sampling.repetition_penalty", sampling(repetition_penalty=math.inf)),
        ("sampling.seed", sampling(seed=2**32)),
    ],
)
async def test_what_can_never_run_is_the_callers_fault(engine: Engine, field: str, changes: dict[str, Any]) -> None:
    await assert_refused(engine, InvalidRequest, field, changes)


@pytest.mark.parametrize(
    ("field", "changes"),
    [
        ("sampling.logit_bias", sampling(logit_bias=((5, 1.0),))),
        ("sampling.presence_penalty", sampling(presence_penalty=0.1)),
        ("sampling.frequency_penalty", sampling(frequency_penalty=-0.1)),
        ("output.top_logprobs", {"top_logprobs": 1}),
        ("output.prompt_top_logprobs", {"prompt_top_logprobs": 0}),
        ("cache.bypass", {"bypass_cache": True}),
    ],
)
async def test_what_the_engine_lacks_is_refused_by_name_and_not_announced(
    engine: Engine, field: str, changes: dict[str, Any]
) -> None:
    await assert_refused(engine, CapabilityAbsent, field, changes)

    assert field not in engine.capabilities.request_fields or field == "output.top_logprobs"


async def assert_refused(engine: Engine, error: type[ServiceError], field: str, changes: dict[str, Any]) -> None:
    settings: dict[str, Any] = {"prompt": PROMPT, "limit": 8} | changes
    prompt, limit = settings.pop("prompt"), settings.pop("limit")
    recorder = EventRecorder()

    with pytest.raises(error) as refused:
        engine.submit(a_request(prompt, limit, **settings), recorder)

    assert refused.value.field == field
    assert (await run(engine, a_request(PROMPT, 4))).token_ids == tokens("baba")
    assert recorder.events == []


async def test_the_longest_request_that_fits_the_context_runs(tmp_path_factory: pytest.TempPathFactory) -> None:
    path = write_table_model(tmp_path_factory.mktemp("table") / "ab.gguf", TABLE)
    async with running(byte_model_options(path, max_context_tokens=64)) as small:
        recorder = await run(small, a_request(PROMPT * 63, 1))

    assert recorder.token_ids == tokens("b")


async def test_blocks_bound_what_runs_together_and_come_back(engine: Engine) -> None:
    # Eleven blocks can be reserved; each request needs ceil(130 / 32) + 1 = 6.
    stream, first = submitted(engine, a_request(PROMPT, 129, ignore_end_of_sequence=True))
    assert engine.load().kv_blocks_reserved == 6

    with pytest.raises(Overloaded):
        submitted(engine, a_request(PROMPT, 129))
    assert not engine.room_for([a_request(PROMPT, 129)])
    assert engine.room_for([a_request(PROMPT, 64)])

    stream.cancel()
    assert engine.load().kv_blocks_reserved == 6, "given back before the worker has confirmed the end"
    await until(lambda: engine.load().kv_blocks_reserved == 0)
    assert isinstance(first.terminal, Cancelled)


async def test_without_a_prefix_cache_there_is_nothing_to_bypass(tmp_path_factory: pytest.TempPathFactory) -> None:
    path = write_table_model(tmp_path_factory.mktemp("table") / "ab.gguf", TABLE)
    async with running(byte_model_options(path, prefix_caching=False)) as uncached:
        recorder = await run(uncached, a_request(PROMPT, 4, bypass_cache=True))

        assert "cache.bypass" in uncached.capabilities.request_fields
    assert recorder.token_ids == tokens("baba")
