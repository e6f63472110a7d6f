"""An OpenVINO folder as an exporter leaves it: a real, if pointless, graph and the model's JSON files."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import numpy as np
from inferwire_server.models.gguf_model import GgufModel
from inferwire_server.models.gguf_tokenizer import tokenizer_json

from tests.server.models.tiny_gguf import CHAT_TEMPLATE, TOKENS, write_tiny_gguf

CONFIG = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "hidden_size": 64,
    "vocab_size": len(TOKENS),
    "max_position_embeddings": 256,
    "eos_token_id": 2,
}


def write_openvino_folder(folder: Path, **config: Any) -> Path:
    """Write the folder; `config` overrides config.json, and None leaves a key out."""
    folder.mkdir(parents=True)
    openvino: Any = importlib.import_module("openvino")  # it has no type information
    opset13 = openvino.opset13
    weights = opset13.constant(np.ones((64, 64), dtype=np.float16))
    given = opset13.parameter([-1, 64], np.float16, name="given")
    graph = openvino.Model([opset13.matmul(given, weights, False, False)], [given], "tiny")
    openvino.save_model(graph, folder / "openvino_model.xml", compress_to_fp16=False)
    merged = {key: value for key, value in {**CONFIG, **config}.items() if value is not None}
    (folder / "config.json").write_text(json.dumps(merged))
    gguf = write_tiny_gguf(folder.parent / f"{folder.name}.for-tokenizer")
    (folder / "tokenizer.json").write_text(tokenizer_json(GgufModel.open(gguf)), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": CHAT_TEMPLATE}))
    return folder
