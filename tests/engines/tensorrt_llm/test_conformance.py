"""The engine conformance suite over the adapter and the stand-in, with either sampler."""

from __future__ import annotations

from typing import ClassVar

import pytest
from inferwire_server.domain.engine import Engine
from inferwire_server.engines.tensorrt_llm.engine import TensorRTEngine
from inferwire_server.engines.tensorrt_llm.options import Options

from tests.engines.engine_contract import EngineContract
from tests.engines.tensorrt_llm.running_engine import Exits
from tests.engines.tensorrt_llm.toy_checkpoint import toy_checkpoint

pytestmark = pytest.mark.usefixtures("standin")

_NO_LANGUAGE = frozenset(f"structured_output.{kind}" for kind in ("json_schema", "regex", "ebnf", "choices"))


class _OnTheStandIn(EngineContract):
    vocabulary_size = 1024
    end_token_ids = frozenset({2, 7})
    prompts = tuple(tuple(range(200 + 10 * n, 208 + 10 * n)) for n in range(8))
    long_prompt = tuple(range(200, 340))
    ending_prompt = (620, 201, 202)
    not_shown = _NO_LANGUAGE
    options: ClassVar[Options]

    @classmethod
    async def make_engine(cls) -> Engine:
        return TensorRTEngine(toy_checkpoint(), cls.options, exit_process=Exits())


class TestDefaultSampler(_OnTheStandIn):
    """What an operator gets without choosing."""

    engine_name = "tensorrt_llm stand-in, torch sampler"
    options = Options(max_batch_size=8)

    async def test_end_of_sequence_can_be_ignored(self, engine: Engine) -> None:
        """This sampler cannot hold end ids back, so an ignored one is a token like any other."""
        request = self.request(self.ending_prompt, max_output_tokens=64, ignore_end_of_sequence=True)
        recorder = await self.run(engine, request)
        assert len(recorder.token_ids) == 64
        assert len(self.end_token_ids.intersection(recorder.token_ids)) == 1


class TestTrtllmSampler(_OnTheStandIn):
    """The sampler that honours seeds and penalties, a bounded cache, logprobs and grammars."""

    engine_name = "tensorrt_llm stand-in, trtllm sampler"
    options = Options(
        max_batch_size=8, sampler="trtllm", logprobs=True, kv_cache_max_tokens=4096, guided_decoding="xgrammar"
    )
