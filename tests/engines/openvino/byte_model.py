"""Llama models that load in a moment, with one token a byte: the whole real pipeline at a millisecond a step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt

Tensor = npt.NDArray[np.float16] | npt.NDArray[np.float32]

_SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
END = 2
"""The end-of-sequence id."""
VOCABULARY_SIZE = len(_SPECIAL) + 256
MAX_CONTEXT_TOKENS = 4096
HEAD_SIZE = 64


@dataclass(frozen=True)
class Shape:
    """Layers, and heads of 64."""

    layers: int
    heads: int

    @property
    def hidden(self) -> int:
        return self.heads * HEAD_SIZE


def token(character: str | int) -> int:
    """The token of an ASCII character or a byte."""
    return len(_SPECIAL) + (ord(character) if isinstance(character, str) else character)


def tokens(text: str) -> list[int]:
    """One token a byte."""
    return [token(byte) for byte in text.encode()]


def text_of(token_ids: Iterable[int]) -> str:
    """The text of tokens that are all bytes."""
    return bytes(token_id - len(_SPECIAL) for token_id in token_ids).decode(errors="replace")


def write_byte_model(path: Path, shape: Shape, tensors: Mapping[str, Tensor]) -> Path:
    """Write the GGUF file of a model."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(shape.layers)
    writer.add_context_length(MAX_CONTEXT_TOKENS)
    writer.add_embedding_length(shape.hidden)
    writer.add_feed_forward_length(shape.hidden)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.heads)
    writer.add_rope_dimension_count(HEAD_SIZE)
    writer.add_rope_freq_base(10_000.0)
    writer.add_layer_norm_rms_eps(1e-12)
    writer.add_vocab_size(VOCABULARY_SIZE)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    _add_tokenizer(writer)
    for name, tensor in tensors.items():
        writer.add_tensor(f"{name}.weight", tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_tokenizer(writer: gguf.GGUFWriter) -> None:
    letters = _byte_letters()
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list([*_SPECIAL, *letters])
    writer.add_token_types([gguf.TokenType.CONTROL] * len(_SPECIAL) + [gguf.TokenType.NORMAL] * len(letters))
    writer.add_token_merges([f"{letters[0]} {letters[0]}"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(END)
    writer.add_pad_token_id(END)


def _byte_letters() -> list[str]:
    """GPT-2's printable stand-ins for the 256 bytes: itself where printable, else the next free code from 256 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]
