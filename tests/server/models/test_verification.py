"""Nothing is loaded from a folder that differs from its manifest in any file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from inferwire_server.models.errors import VerificationFailed
from inferwire_server.models.progress import Progress, Stage
from inferwire_server.models.repository import ModelRepository
from inferwire_server.models.version import ModelVersion

from tests.server.models.stored import small_manifest, store


@pytest.fixture
def version(tmp_path: Path) -> ModelVersion:
    return store(ModelRepository(tmp_path), small_manifest())


def _flip_a_byte(folder: Path) -> None:
    data = bytearray((folder / "model.gguf").read_bytes())
    data[100] ^= 1
    (folder / "model.gguf").write_bytes(data)


def _cut(folder: Path) -> None:
    (folder / "model.gguf").write_bytes((folder / "model.gguf").read_bytes()[:-1])


def _delete(folder: Path) -> None:
    (folder / "model.gguf").unlink()


def _link(folder: Path) -> None:
    moved = folder.parent / "elsewhere.gguf"
    (folder / "model.gguf").rename(moved)
    (folder / "model.gguf").symlink_to(moved)


def _add_weights(folder: Path) -> None:
    (folder / "openvino_model.bin").write_bytes(b"more")


def _change_template(folder: Path) -> None:
    (folder / "chat_template.jinja").write_bytes(b"{{ messagez }}")


@pytest.mark.parametrize(
    ("damage", "file", "words"),
    [
        (_flip_a_byte, "model.gguf", "was changed"),
        (_cut, "model.gguf", "bytes"),
        (_delete, "model.gguf", "missing"),
        (_link, "model.gguf", "not a plain file"),
        (_add_weights, "openvino_model.bin", "not in the manifest"),
        (_change_template, "chat_template.jinja", "was changed"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_damage_is_refused_by_file_and_with_advice(
    version: ModelVersion, damage: Callable[[Path], None], file: str, words: str
) -> None:
    damage(version.path)

    with pytest.raises(VerificationFailed, match=words) as refused:
        version.verify()
    assert file in refused.value.problem
    assert refused.value.advice


def test_an_intact_version_passes_and_shows_progress(version: ModelVersion) -> None:
    seen: list[Progress] = []

    version.verify(seen.append)

    assert seen[-1].stage is Stage.CHECKING
    assert seen[-1].done == seen[-1].total == sum(entry.size for entry in version.manifest.files)
