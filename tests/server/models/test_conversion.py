"""Hugging Face weights, from a hub to the tokens that the converted model gives. Needs the extra `convert`."""

from __future__ import annotations

import importlib
import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from inferwire_server.models.errors import ConversionFailed
from inferwire_server.models.repository import ModelRepository
from inferwire_server.models.sources import pull
from inferwire_server.models.version import ModelVersion

from tests.server.models.make_random_llama import NEW_TOKENS, PROMPT
from tests.server.models.model_hub import REPOSITORY, ModelHub, serving_hub

MISSING = [name for name in ("torch", "optimum", "transformers") if importlib.util.find_spec(name) is None]
pytestmark = [
    pytest.mark.skipif(bool(MISSING), reason=f"opt-in: install the extra `convert` (missing: {', '.join(MISSING)})"),
    pytest.mark.timeout(600),
]
MAKER = Path(__file__).with_name("make_random_llama.py")


def _make_model(folder: Path) -> list[int]:
    """Write a random Llama and return its greedy continuation as its own library computes it."""
    made = subprocess.run([sys.executable, str(MAKER), str(folder)], check=True, capture_output=True, text=True)
    continuation: list[int] = json.loads(made.stdout.splitlines()[-1])
    return continuation


def _continuation(version: ModelVersion) -> list[int]:
    genai: Any = importlib.import_module("openvino_genai")
    openvino: Any = importlib.import_module("openvino")
    scheduler = genai.SchedulerConfig()
    scheduler.num_kv_blocks = 16
    exact = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0}
    pipeline = genai.ContinuousBatchingPipeline(str(version.weights_path), scheduler, "CPU", exact)
    wish = genai.GenerationConfig(max_new_tokens=NEW_TOKENS, do_sample=False, ignore_eos=True)
    handle = pipeline.add_request(0, openvino.Tensor(np.array([PROMPT])), wish)
    while pipeline.has_non_finished_requests():
        pipeline.step()
    produced: list[int] = []
    while handle.can_read():
        produced += next(iter(handle.read().values())).generated_ids
    return produced


def test_a_converted_model_gives_the_tokens_of_the_original(tmp_path: Path) -> None:
    expected = _make_model(tmp_path / "hub")
    with serving_hub(ModelHub(tmp_path / "hub")) as hub:
        (version,) = pull(f"hf:{REPOSITORY}", ModelRepository(tmp_path / "models"), environment=hub.environment())

    version.verify()
    assert version.manifest.source.processing == "converted to f16 OpenVINO"
    assert version.tokenizer_path.read_bytes() == (tmp_path / "hub" / "tokenizer.json").read_bytes()
    assert version.manifest.chat_roles == ("system", "user", "assistant")
    assert _continuation(version) == expected


def test_a_folder_of_weights_is_converted_too(tmp_path: Path) -> None:
    _make_model(tmp_path / "My-Llama")

    (version,) = pull(str(tmp_path / "My-Llama"), ModelRepository(tmp_path / "models"))

    assert version.manifest.name == "my-llama"
    version.verify()


def test_weights_that_cannot_be_converted_leave_nothing(tmp_path: Path) -> None:
    _make_model(tmp_path / "broken")
    (tmp_path / "broken" / "model.safetensors").write_bytes(b"no weights at all")
    repository = ModelRepository(tmp_path / "models")

    with pytest.raises(ConversionFailed, match="could not be converted"):
        pull(str(tmp_path / "broken"), repository)
    assert repository.versions() == []
