"""The tokenizer rebuilt from GGUF metadata encodes as the model was trained to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from inferwire_server.models.errors import SourceCorrupt, UnsupportedModel
from inferwire_server.models.gguf_model import GgufModel
from inferwire_server.models.gguf_tokenizer import tokenizer_json

from tests.server.models.tiny_gguf import TOKENS, write_tiny_gguf


def _built(folder: Path, **text: Any) -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_str(tokenizer_json(GgufModel.open(write_tiny_gguf(folder / "m.gguf", **text))))


def _pieces(tokenizer: tokenizers.Tokenizer, text: str) -> list[str]:
    assert tokenizer.pre_tokenizer is not None
    return [piece for piece, _ in tokenizer.pre_tokenizer.pre_tokenize_str(text)]


def test_merges_are_applied_in_order(tmp_path: Path) -> None:
    tokenizer = _built(tmp_path)

    assert tokenizer.encode(" the").tokens == ["Ġthe"]
    assert tokenizer.encode("the").tokens == ["t", "he"]


def test_text_comes_back_byte_for_byte(tmp_path: Path) -> None:
    tokenizer = _built(tmp_path)
    text = "naïve  ☕\n\t 12345 <|x|>"

    assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_control_tokens_are_one_id_and_special(tmp_path: Path) -> None:
    tokenizer = _built(tmp_path)

    assert tokenizer.encode("<|im_start|>t<|im_end|>").ids == [1, TOKENS.index("t"), 2]
    assert tokenizer.decode([1, 2]) == ""


def test_no_text_becomes_an_unknown_token(tmp_path: Path) -> None:
    document = json.loads(tokenizer_json(GgufModel.open(write_tiny_gguf(tmp_path / "m.gguf", unknown_token_id=0))))

    assert document["model"]["unk_token"] is None


@pytest.mark.parametrize(
    ("pre", "pieces"),
    [
        ("smollm", ["I", "'ll", "Ġpay", "Ġ", "1", "2", "3", "4"]),
        ("gpt-2", ["I", "'ll", "Ġpay", "Ġ1234"]),
        ("qwen2", ["I", "'ll", "Ġpay", "Ġ", "1", "2", "3", "4"]),
        ("llama-bpe", ["I", "'ll", "Ġpay", "Ġ", "123", "4"]),
    ],
)
def test_numbers_and_words_split_as_the_kind_demands(tmp_path: Path, pre: str, pieces: list[str]) -> None:
    assert _pieces(_built(tmp_path, pre=pre), "I'll pay 1234") == pieces


@pytest.mark.parametrize(
    ("text", "adds"),
    [
        ({}, False),
        ({"add_bos_token": None}, False),
        ({"add_bos_token": True}, True),
        ({"add_bos_token": None, "pre": "llama-bpe"}, True),
        ({"add_bos_token": False, "pre": "llama-bpe"}, False),
    ],
    ids=["stated off", "silent", "stated on", "llama 3 silent", "llama 3 stated off"],
)
def test_the_beginning_token_is_added_when_the_model_wants_it(tmp_path: Path, text: dict[str, Any], adds: bool) -> None:
    ids = _built(tmp_path, **text).encode("t").ids

    assert ids == ([1] if adds else []) + [TOKENS.index("t")]


@pytest.mark.parametrize(
    "text", [{"model": "llama"}, {"pre": "deepseek-llm"}, {"pre": None}, {"add_eos_token": True}], ids=str
)
def test_a_kind_that_cannot_be_rebuilt_asks_for_the_file(tmp_path: Path, text: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedModel, match=r"tokenizer\.json"):
        _built(tmp_path, **text)


def test_a_vocabulary_that_does_not_fit_the_embedding_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceCorrupt, match="rows of the embedding"):
        _built(tmp_path, tokens=TOKENS[:-1])


def test_a_merge_of_unknown_parts_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceCorrupt, match="does not load"):
        _built(tmp_path, merges=["no such"])


def test_the_file_is_the_same_each_time(tmp_path: Path) -> None:
    model = GgufModel.open(write_tiny_gguf(tmp_path / "m.gguf"))

    assert tokenizer_json(model) == tokenizer_json(model)
