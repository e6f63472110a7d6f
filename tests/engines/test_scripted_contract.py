"""The scripted engine keeps every promise of the port."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from inferwire_server.engines.scripted import Plan, PlanBook, ScriptedEngine, ScriptedOptions
from inferwire_server.engines.scripted.vocabulary import END_TOKEN_IDS, VOCABULARY_SIZE, byte_tokens, text_of

from tests.engines.engine_contract import EngineContract


class TestScriptedEngine(EngineContract):
    engine_name = "scripted"
    vocabulary_size = VOCABULARY_SIZE
    end_token_ids = END_TOKEN_IDS
    prompts: ClassVar[Sequence[Sequence[int]]] = [
        byte_tokens(text)
        for text in ("The quick brown fox", "tell a story", "ping", "Repeat: ab", "é", "one", "two two", "three\n" * 3)
    ]
    long_prompt = byte_tokens("A long prompt has many words. " * 10)
    ending_prompt = byte_tokens("please end")

    @classmethod
    async def make_engine(cls) -> ScriptedEngine:
        options = ScriptedOptions(
            step_base_s=0.0, max_running=8, kv_blocks=128, max_context_tokens=512, prefill_chunk_tokens=128
        )
        return ScriptedEngine(options, plans=PlanBook(rules=(("please end", Plan(reply="The end.")),)))

    @classmethod
    def text_of(cls, token_ids: Sequence[int]) -> str:
        return text_of(token_ids)
