"""Pulling a Hugging Face repository: pinned to a commit, each file proved, converted only where needed."""

from __future__ import annotations

import importlib.util
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from inferwire_server.models.errors import (
    AccessDenied,
    ConverterMissing,
    DownloadFailed,
    ModelError,
    NameTaken,
    NetworkUnreachable,
    SourceCorrupt,
    SourceNotFound,
    UnsupportedModel,
)
from inferwire_server.models.progress import Progress, Stage
from inferwire_server.models.repository import ModelRepository
from inferwire_server.models.sources import pull

from tests.server.models.model_hub import COMMIT, REPOSITORY, ModelHub, serving_hub
from tests.server.models.openvino_folder import write_openvino_folder
from tests.server.models.stored import small_manifest, store

SOURCE = f"hf:{REPOSITORY}"
no_converter = pytest.mark.skipif(importlib.util.find_spec("torch") is not None, reason="torch is installed")


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[ModelHub]:
    with serving_hub(ModelHub(write_openvino_folder(tmp_path / "hub"))) as running:
        yield running


@pytest.fixture
def repository(tmp_path: Path) -> ModelRepository:
    return ModelRepository(tmp_path / "models")


def test_an_openvino_repository_becomes_a_version_of_its_commit(hub: ModelHub, repository: ModelRepository) -> None:
    (version,) = pull(SOURCE, repository, environment=hub.environment())

    version.verify()
    manifest = version.manifest
    assert manifest.qualified_name == f"tiny-model@{COMMIT[:12]}"
    assert (manifest.source.location, manifest.source.revision) == (REPOSITORY, COMMIT)
    assert manifest.source.sha256["openvino_model.bin"]
    assert manifest.licence == "apache-2.0"


def test_a_revision_can_be_named(hub: ModelHub, repository: ModelRepository) -> None:
    (version,) = pull(f"{SOURCE}@{COMMIT[:7]}", repository, environment=hub.environment())

    assert version.manifest.source.revision == COMMIT


def test_the_download_shows_its_progress_in_bytes(hub: ModelHub, repository: ModelRepository) -> None:
    seen: list[Progress] = []

    pull(SOURCE, repository, seen.append, environment=hub.environment())

    weights = [step for step in seen if (step.stage, step.subject) == (Stage.DOWNLOADING, "openvino_model.bin")]
    assert weights[-1].done == weights[-1].total == (hub.folder / "openvino_model.bin").stat().st_size


def test_a_commit_that_is_there_is_not_fetched_again(hub: ModelHub, repository: ModelRepository) -> None:
    pull(SOURCE, repository, environment=hub.environment())
    pull(SOURCE, repository, environment=hub.environment())

    assert hub.fetched.count("openvino_model.bin") == 1


def _refusal(hub: ModelHub, repository: ModelRepository, source: str = SOURCE) -> ModelError:
    with pytest.raises(ModelError) as refused:
        pull(source, repository, environment=hub.environment())
    assert all(version.manifest.source.kind != "hub" for version in repository.versions())
    assert refused.value.advice
    return refused.value


@pytest.mark.parametrize("name", ["openvino_model.bin", "config.json"])
def test_a_file_that_is_not_the_listed_one_is_refused(hub: ModelHub, repository: ModelRepository, name: str) -> None:
    hub.tampered = name

    refusal = _refusal(hub, repository)

    assert isinstance(refusal, SourceCorrupt)
    assert name in refusal.problem


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ((401, "RepoNotFound"), SourceNotFound),
        ((403, "GatedRepo"), AccessDenied),
        ((403, ""), AccessDenied),
        ((404, "RevisionNotFound"), SourceNotFound),
        ((418, ""), DownloadFailed),
    ],
)
def test_an_answer_of_the_hub_is_explained(
    hub: ModelHub, repository: ModelRepository, error: tuple[int, str], kind: type[ModelError]
) -> None:
    hub.error = error

    assert type(_refusal(hub, repository)) is kind


def test_a_hub_that_cannot_be_reached_is_a_matter_of_the_network(hub: ModelHub, repository: ModelRepository) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        hub.url = f"http://127.0.0.1:{unused.getsockname()[1]}"

        assert isinstance(_refusal(hub, repository), NetworkUnreachable)


@pytest.mark.parametrize("source", ["hf:", "hf:name", "hf:a/b/c", "hf:../x", "hf:a/b@", "hf:a/b@c@d"])
def test_what_names_no_repository_is_refused(hub: ModelHub, repository: ModelRepository, source: str) -> None:
    assert isinstance(_refusal(hub, repository, source), SourceNotFound)


def test_a_name_that_another_source_holds_is_not_taken_over(hub: ModelHub, repository: ModelRepository) -> None:
    store(repository, small_manifest(name="tiny-model"))

    assert isinstance(_refusal(hub, repository), NameTaken)


def test_a_repository_without_usable_weights_is_refused(hub: ModelHub, repository: ModelRepository) -> None:
    (hub.folder / "openvino_model.xml").rename(hub.folder / "pytorch_model.bin")

    assert isinstance(_refusal(hub, repository), UnsupportedModel)


@no_converter
def test_weights_are_not_fetched_when_nothing_can_convert_them(hub: ModelHub, repository: ModelRepository) -> None:
    (hub.folder / "openvino_model.xml").rename(hub.folder / "model.safetensors")

    assert isinstance(_refusal(hub, repository), ConverterMissing)
    assert hub.fetched == []
