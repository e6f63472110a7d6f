"""The OpenVINO engine keeps every promise of the port."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np
from inferwire_server.engines.openvino.engine import OpenVinoEngine

from tests.engines.engine_contract import EngineContract
from tests.engines.openvino.byte_model import END, VOCABULARY_SIZE, text_of, token, tokens
from tests.engines.openvino.engines import byte_model_options
from tests.engines.openvino.table_model import Table, write_table_model


def babble() -> Table:
    """Random logits among letters, punctuation at a distance, and an end after a question mark only."""
    draw = np.random.default_rng(2026)
    common, rare = tokens("abcdefghijklmnopqrstuvwxyz0123456789"), tokens('"{}[]:,.-ABCDEF')
    ending = {token("!"): {token("?"): 10.0}, token("?"): {END: 10.0, token("a"): 5.0}}
    rows = {
        last: dict(zip(common, draw.normal(5.0, 2.0, len(common)), strict=True))
        | dict(zip(rare, draw.normal(-4.0, 1.0, len(rare)), strict=True))
        for last in range(END + 1, VOCABULARY_SIZE)
    }
    return rows | ending


@functools.cache
def babble_file() -> Path:
    """The GGUF file, written once a session."""
    folder = Path(tempfile.mkdtemp(prefix="inferwire-table-"))
    return write_table_model(folder / "babble.gguf", babble())


class TestOpenVinoEngine(EngineContract):
    """The whole real engine on a model of random tables: a step takes a millisecond."""

    engine_name = "openvino exact, table model"
    vocabulary_size = VOCABULARY_SIZE
    end_token_ids = frozenset({END})
    prompts: ClassVar[Sequence[Sequence[int]]] = [
        tokens(text)
        for text in ("The quick brown fox", "tell a story", "ping", "Repeat: ab", "0", "one", "two two", "z")
    ]
    long_prompt = tokens("A long prompt has many words. " * 10)
    ending_prompt = tokens("please end!")

    @classmethod
    async def make_engine(cls) -> OpenVinoEngine:
        return OpenVinoEngine(byte_model_options(babble_file(), max_running=8, kv_blocks=128, max_context_tokens=512))

    @classmethod
    def text_of(cls, token_ids: Sequence[int]) -> str:
        return text_of(token_ids)
