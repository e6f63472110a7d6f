"""A whole llama-like GGUF model of a few kilobytes, with a byte-level vocabulary and a chat template."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import quantize
from tokenizers.pre_tokenizers import ByteLevel

CONTROL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
MERGES = ("Ġ t", "h e", "Ġt he")
TOKENS = [*CONTROL_TOKENS, *sorted(ByteLevel.alphabet()), "Ġt", "he", "Ġthe"]
WIDTH = 64


def write_tiny_gguf(
    path: Path,
    *,
    family: str = "llama",
    kind: GGMLQuantizationType = GGMLQuantizationType.F16,
    tokens: list[str] | None = None,
    **text: Any,
) -> Path:
    """Write the model; `text` overrides keys under `tokenizer.ggml.`, and None leaves one out."""
    random = np.random.default_rng(7)
    writer = GGUFWriter(path, family)
    writer.add_context_length(256)
    writer.add_block_count(1)
    writer.add_embedding_length(WIDTH)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_license("apache-2.0")
    _write_text(writer, TOKENS if tokens is None else tokens, text)
    for name, shape in {"token_embd": (len(TOKENS), WIDTH), "blk.0.attn_q": (WIDTH, WIDTH)}.items():
        values = random.standard_normal(shape, dtype=np.float32)
        writer.add_tensor(f"{name}.weight", quantize(values, kind), raw_dtype=kind)
    writer.add_tensor("output_norm.weight", np.ones(WIDTH, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _write_text(writer: GGUFWriter, tokens: list[str], overrides: dict[str, Any]) -> None:
    values: dict[str, Any] = {
        "model": "gpt2",
        "pre": "smollm",
        "tokens": tokens,
        "token_type": [3 if token in CONTROL_TOKENS else 1 for token in tokens],
        "merges": list(MERGES),
        "bos_token_id": 1,
        "eos_token_id": 2,
        "add_bos_token": False,
        **overrides,
    }
    for key, value in values.items():
        name = f"tokenizer.ggml.{key}"
        if isinstance(value, bool):
            writer.add_bool(name, value)
        elif isinstance(value, int):
            writer.add_uint32(name, value)
        elif isinstance(value, str):
            writer.add_string(name, value)
        elif value is not None:
            writer.add_array(name, value)
    writer.add_chat_template(CHAT_TEMPLATE)
