"""The real model: pulled by the real code, the same on every machine, tokenised as it was trained."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from inferwire_server.models.manifest import WeightsFormat
from inferwire_server.models.version import ModelVersion

pytestmark = [pytest.mark.real_model, pytest.mark.timeout(600)]

REFERENCE = Path(__file__).parents[2] / "data" / "smollm2-greedy-fp32.json"


@pytest.fixture(scope="module")
def tokenizer(smollm2_f16: ModelVersion) -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_file(str(smollm2_f16.tokenizer_path))


def _cases() -> list[dict[str, Any]]:
    cases: list[dict[str, Any]] = json.loads(REFERENCE.read_text())["cases"]
    return cases


def test_weights_are_the_same_on_every_machine(smollm2_f16: ModelVersion, smollm2_q8_0: ModelVersion) -> None:
    """Servers of one fleet must agree, or a stream could not go on elsewhere."""
    assert smollm2_f16.manifest.fingerprint == "640d7dc737a785fb0f3255f60fffff67bfebc1e4c2e7bb4014ebebbace3f235b"
    assert smollm2_q8_0.manifest.fingerprint == "ff079083367bd81c4eb5c5f6262f047c5de07727b25fbc63f3179eed69d3d5f2"


def test_each_profile_gets_its_version(smollm2_f16: ModelVersion, smollm2_q8_0: ModelVersion) -> None:
    assert smollm2_f16.manifest.qualified_name == "smollm2-135m-instruct@f16"
    assert smollm2_q8_0.manifest.qualified_name == "smollm2-135m-instruct@q8_0"


def test_both_versions_are_intact(smollm2_f16: ModelVersion, smollm2_q8_0: ModelVersion) -> None:
    smollm2_f16.verify()
    smollm2_q8_0.verify()


def test_the_manifest_holds_the_models_facts(smollm2_q8_0: ModelVersion) -> None:
    manifest = smollm2_q8_0.manifest

    assert manifest.format is WeightsFormat.GGUF
    assert (manifest.context_tokens, manifest.vocabulary_size, manifest.end_token_ids) == (8192, 49152, (2,))
    assert (manifest.architecture.layers, manifest.architecture.kv_heads, manifest.architecture.key_size) == (30, 3, 64)
    assert manifest.chat_roles == ("system", "user", "assistant")
    assert (smollm2_q8_0.defaults.sampling.temperature, smollm2_q8_0.defaults.sampling.top_p) == (0.2, 0.9)
    assert manifest.licence == "Apache-2.0"


@pytest.mark.parametrize("case", _cases(), ids=range(8))
def test_prompts_tokenise_as_the_reference_did(tokenizer: tokenizers.Tokenizer, case: dict[str, Any]) -> None:
    prompt = tokenizer.decode(case["prompt_token_ids"], skip_special_tokens=False)

    assert tokenizer.encode(prompt).ids == case["prompt_token_ids"]


def test_no_beginning_token_is_added(tokenizer: tokenizers.Tokenizer, smollm2_f16: ModelVersion) -> None:
    """The metadata says add_bos_token = false."""
    assert not smollm2_f16.manifest.adds_beginning_token
    assert (
        tokenizer.encode("Hello", add_special_tokens=True).ids
        == tokenizer.encode("Hello", add_special_tokens=False).ids
    )


def test_each_digit_is_a_token(tokenizer: tokenizers.Tokenizer) -> None:
    assert tokenizer.encode("2026").tokens == ["2", "0", "2", "6"]
