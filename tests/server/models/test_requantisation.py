"""Weights are rewritten faithfully, the same everywhere, and never silently spoiled."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter
from gguf.quants import dequantize
from inferwire_server.models.errors import ConversionFailed, SourceCorrupt, UnsupportedModel
from inferwire_server.models.gguf_model import GgufModel
from inferwire_server.models.progress import silent
from inferwire_server.models.requantisation import requantise

from tests.server.models.tiny_gguf import write_tiny_gguf

F16, Q4_1, Q8_0 = GGMLQuantizationType.F16, GGMLQuantizationType.Q4_1, GGMLQuantizationType.Q8_0


def _rewritten(source: Path, kind: GGMLQuantizationType) -> GGUFReader:
    target = source.with_name(f"{kind.name}.gguf")
    requantise(GgufModel.open(source), target, kind, silent)
    return GGUFReader(target)


@pytest.mark.parametrize(("kind", "tolerance"), [(F16, 2e-3), (Q8_0, 2e-2)])
def test_values_survive_within_the_types_precision(
    tmp_path: Path, kind: GGMLQuantizationType, tolerance: float
) -> None:
    source = write_tiny_gguf(tmp_path / "m.gguf", kind=Q4_1)

    for before, after in zip(GGUFReader(source).tensors, _rewritten(source, kind).tensors, strict=True):
        assert before.name == after.name
        assert list(before.shape) == list(after.shape)
        old, new = dequantize(before.data, before.tensor_type), dequantize(after.data, after.tensor_type)
        assert np.max(np.abs(old - new)) <= tolerance * np.max(np.abs(old))


def test_matrices_change_type_and_vectors_stay_exact(tmp_path: Path) -> None:
    types = {tensor.name: tensor.tensor_type for tensor in _rewritten(write_tiny_gguf(tmp_path / "m"), Q8_0).tensors}

    assert types["blk.0.attn_q.weight"] is Q8_0
    assert types["output_norm.weight"] is GGMLQuantizationType.F32


def test_metadata_is_carried_over_and_the_file_type_is_new(tmp_path: Path) -> None:
    source = write_tiny_gguf(tmp_path / "m.gguf", kind=Q4_1)
    before, after = GgufModel.open(source).metadata(), _rewritten(source, F16)

    kept = {key: field.contents() for key, field in after.fields.items()}
    assert all(kept[key] == value for key, (value, _) in before.items() if key != "general.file_type")
    assert kept["general.file_type"] == 1


def test_the_same_model_gives_the_same_bytes(tmp_path: Path) -> None:
    source = write_tiny_gguf(tmp_path / "m.gguf", kind=Q4_1)
    _rewritten(source, Q8_0)
    first = (tmp_path / "Q8_0.gguf").read_bytes()

    _rewritten(source, Q8_0)

    assert (tmp_path / "Q8_0.gguf").read_bytes() == first


def test_a_value_too_large_for_the_type_is_refused_by_its_tensor(tmp_path: Path) -> None:
    writer = GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_tensor("blk.0.attn_q.weight", np.full((32, 32), 1e6, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    with pytest.raises(ConversionFailed, match=r"blk\.0\.attn_q\.weight"):
        _rewritten(tmp_path / "m.gguf", F16)


def test_another_architecture_is_refused_with_the_supported_ones(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match="llama, qwen2, qwen3"):
        GgufModel.open(write_tiny_gguf(tmp_path / "m.gguf", family="gemma3"))


@pytest.mark.parametrize("damage", ["empty", "other", "cut metadata", "cut weights"])
def test_a_damaged_file_is_refused_by_its_name(tmp_path: Path, damage: str) -> None:
    whole = write_tiny_gguf(tmp_path / "m.gguf").read_bytes()
    content = {"empty": b"", "other": b"PK\3\4" * 100, "cut metadata": whole[:300], "cut weights": whole[:-5000]}
    (tmp_path / "m.gguf").write_bytes(content[damage])

    with pytest.raises(SourceCorrupt, match=r"m\.gguf"):
        GgufModel.open(tmp_path / "m.gguf")
