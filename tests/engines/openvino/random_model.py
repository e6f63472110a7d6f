"""A model with random weights and real attention.

Each token depends on all before it, so that a stray key or value anywhere in the cache changes what comes out.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.engines.openvino.byte_model import END, VOCABULARY_SIZE, Shape, Tensor, write_byte_model

_SHAPE = Shape(layers=2, heads=2)
_SPREAD = {"attn_q": 2.0, "attn_k": 2.0, "attn_v": 2.0, "attn_output": 2.0}
"""Standard deviations above one make attention sharp and its result weighty."""
_LOGIT_SPREAD = 4.0


def write_random_model(path: Path, seed: int = 1) -> Path:
    """Write the GGUF file of a random model. It never chooses the end-of-sequence id."""
    draw = np.random.default_rng(seed)
    hidden = _SHAPE.hidden

    def matrix(rows: int, spread: float) -> Tensor:
        return np.asarray(draw.standard_normal((rows, hidden)) * spread * hidden**-0.5, np.float16)

    output = matrix(VOCABULARY_SIZE, _LOGIT_SPREAD)
    output[END] = 0
    tensors: dict[str, Tensor] = {
        "token_embd": matrix(VOCABULARY_SIZE, hidden**0.5),
        "output": output,
        "output_norm": np.ones(hidden, np.float32),
    }
    for layer in range(_SHAPE.layers):
        for norm in ("attn_norm", "ffn_norm"):
            tensors[f"blk.{layer}.{norm}"] = np.ones(hidden, np.float32)
        for name in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"):
            tensors[f"blk.{layer}.{name}"] = matrix(hidden, _SPREAD.get(name, 1.0))
    return write_byte_model(path, _SHAPE, tensors)
