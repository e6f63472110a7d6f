"""Checkpoint folders that a server can serve on the stand-in for TensorRT-LLM: its toy model, and text around it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, pre_tokenizers
from tokenizers.models import BPE

from tests.engines.tensorrt_llm.toy_checkpoint import unkind_checkpoint

NAME = "toy"
VOCABULARY_SIZE = 1024
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|start|>' + message.role + ' ' + message.content + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start|>assistant ' }}{% endif %}"
)
_CONTROL = {2: "<|end-of-text|>", 3: "<|start|>", 7: "<|end|>"}
_FIRST_BYTE = 256


def write_checkpoint(parent: Path, *, context_tokens: int = 512, **temperament: Any) -> Path:
    """A folder named `toy` with everything but weights; the stand-in reads its temperament from it."""
    folder = parent / NAME
    unkind_checkpoint(folder, **temperament)
    config = json.loads((folder / "config.json").read_text()) | {"max_position_embeddings": context_tokens}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text(_tokenizer(), encoding="utf-8")
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    return folder


def report_of(folder: Path) -> dict[str, Any]:
    """What the stand-in was asked to do, written when it is unloaded."""
    report: dict[str, Any] = json.loads((folder / "standin-report.json").read_text())
    return report


def _tokenizer() -> str:
    """Ids 256 to 511 are the bytes of a text, every other id is a word of its own."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = {f"Ġword{number}": number for number in range(VOCABULARY_SIZE)}
    vocabulary = {word: number for word, number in words.items() if not 0 <= number - _FIRST_BYTE < len(letters)}
    vocabulary |= {letter: _FIRST_BYTE + place for place, letter in enumerate(letters)}
    vocabulary = {word: number for word, number in vocabulary.items() if number not in _CONTROL}
    vocabulary |= {text: number for number, text in _CONTROL.items()}
    tokenizer = tokenizers.Tokenizer(BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(_CONTROL.values()))
    return tokenizer.to_str()
