"""A model whose next token depends on the last one only, with logits that the test writes down.

All-zero attention and feed-forward weights pass the embedding through; a one-hot embedding then picks a column of the
output matrix.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from tests.engines.openvino.byte_model import VOCABULARY_SIZE, Shape, Tensor, write_byte_model

Table = Mapping[int, Mapping[int, float]]
"""Last token, next token, logit; every other pair has LOWEST."""
LOWEST = -20.0
_SHAPE = Shape(layers=1, heads=5)


def write_table_model(path: Path, table: Table) -> Path:
    """Write the GGUF file of a table."""
    hidden = _SHAPE.hidden
    output = np.full((VOCABULARY_SIZE, hidden), LOWEST, np.float16)
    for last, row in table.items():
        for following, logit in row.items():
            output[following, last] = logit
    tensors: dict[str, Tensor] = {
        "token_embd": np.eye(VOCABULARY_SIZE, hidden, dtype=np.float16),
        "output": output,
        # Undoes the division by the root mean square of a one-hot vector.
        "output_norm": np.full(hidden, hidden**-0.5, np.float32),
    }
    for norm in ("attn_norm", "ffn_norm"):
        tensors[f"blk.0.{norm}"] = np.ones(hidden, np.float32)
    for matrix in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"):
        tensors[f"blk.0.{matrix}"] = np.zeros((hidden, hidden), np.float16)
    return write_byte_model(path, _SHAPE, tensors)
