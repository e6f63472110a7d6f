"""The model folder: what a name means, and that a version appears whole or not at all."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import NoReturn

import pytest
from inferwire_server.models.errors import (
    InvalidModelName,
    ManifestInvalid,
    ModelNotStored,
    StorageUnavailable,
    VerificationFailed,
)
from inferwire_server.models.manifest import MANIFEST_NAME
from inferwire_server.models.progress import Progress, Stage
from inferwire_server.models.repository import ModelRepository, default_root
from inferwire_server.models.version import EngineIdentity

from tests.server.models.stored import small_manifest, store

EARLY, LATE = "2026-01-01T00:00:00+00:00", "2026-02-01T00:00:00+00:00"


@pytest.fixture
def repository(tmp_path: Path) -> ModelRepository:
    return ModelRepository(tmp_path / "models")


def test_an_absent_folder_is_an_empty_repository(repository: ModelRepository) -> None:
    assert repository.versions() == []
    assert not repository.root.exists()


def test_the_default_folder_is_in_the_users_data_folder() -> None:
    assert default_root().parts[-2:] == ("inferwire", "models")


def test_a_named_version_is_that_version(repository: ModelRepository) -> None:
    store(repository, small_manifest(version="one", published_at=LATE))
    store(repository, small_manifest(version="two", published_at=EARLY))

    assert repository.resolve("small@two").manifest.version == "two"


def test_a_bare_name_is_the_version_that_prefers_the_profile(repository: ModelRepository) -> None:
    store(repository, small_manifest(version="f16", preferred_for=("exact",), published_at=EARLY))
    store(repository, small_manifest(version="q8_0", preferred_for=("fast",), published_at=EARLY))
    store(repository, small_manifest(version="other", published_at=LATE))

    assert repository.resolve("small").manifest.version == "q8_0"
    assert repository.resolve("small", prefer="exact").manifest.version == "f16"


def test_without_a_preference_the_one_published_last_is_taken(repository: ModelRepository) -> None:
    store(repository, small_manifest(version="b", published_at=EARLY))
    store(repository, small_manifest(version="a", published_at=LATE))

    assert repository.resolve("small").manifest.version == "a"


def test_an_unknown_model_is_refused_with_what_is_there(repository: ModelRepository) -> None:
    store(repository, small_manifest())

    with pytest.raises(ModelNotStored, match="small@one"):
        repository.resolve("smoll")
    with pytest.raises(ModelNotStored, match="small@one") as refused:
        repository.resolve("small@two")
    assert "inferwire pull small" not in str(refused.value)


def test_only_a_name_that_can_be_pulled_is_to_be_pulled(repository: ModelRepository) -> None:
    with pytest.raises(ModelNotStored, match="Run `inferwire pull smollm2-135m-instruct`"):
        repository.resolve("smollm2-135m-instruct")
    with pytest.raises(ModelNotStored, match="knows smollm2-135m-instruct") as refused:
        repository.resolve("nosuch")
    assert "pull nosuch" not in str(refused.value)


@pytest.mark.parametrize("reference", ["../small", "small@../one", "/etc", ".locks"])
def test_a_name_cannot_reach_outside_the_folder(repository: ModelRepository, reference: str) -> None:
    with pytest.raises(InvalidModelName):
        repository.resolve(reference)


@pytest.mark.parametrize("reference", ["small", "small@one"])
def test_a_version_that_cannot_be_read_is_never_passed_over_for_another(
    repository: ModelRepository, reference: str
) -> None:
    damaged = store(repository, small_manifest(version="one", preferred_for=("fast",)))
    store(repository, small_manifest(version="two"))
    (damaged.path / MANIFEST_NAME).write_text("{")

    with pytest.raises(ManifestInvalid, match="one"):
        repository.resolve(reference)
    assert [version.manifest.version for version in repository.versions()] == ["two"]
    assert repository.resolve("small@two").manifest.version == "two"


def test_a_renamed_folder_is_not_served_under_its_new_name(repository: ModelRepository) -> None:
    version = store(repository, small_manifest())
    version.path.rename(version.path.with_name("two"))

    with pytest.raises(ManifestInvalid, match="not of this folder"):
        repository.resolve("small@two")


def test_a_published_version_replaces_a_damaged_one(repository: ModelRepository) -> None:
    version = store(repository, small_manifest())
    (version.path / "model.gguf").write_bytes(b"damaged")

    store(repository, small_manifest())

    repository.verify("small@one")


def test_a_bare_name_stands_for_all_versions_when_files_are_proved(repository: ModelRepository) -> None:
    store(repository, small_manifest(version="one", published_at=EARLY))
    other = store(repository, small_manifest(version="two", published_at=LATE))
    assert [version.manifest.version for version in repository.verify("small")] == ["one", "two"]

    (other.path / "model.gguf").write_bytes(b"damaged")

    with pytest.raises(VerificationFailed):
        repository.verify("small")
    repository.verify("small@one")


def test_a_draft_that_fails_leaves_nothing(repository: ModelRepository) -> None:
    def write_half() -> NoReturn:
        with repository.writing("small") as writer, writer.draft() as draft:
            (draft / "model.gguf").write_bytes(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_half()

    assert list((repository.root / "small").iterdir()) == []


_KILLED_WRITER = """
import os, signal, sys
from pathlib import Path
from inferwire_server.models.repository import ModelRepository
with ModelRepository(Path(sys.argv[1])).writing("small") as writer, writer.draft() as draft:
    (draft / "model.gguf").write_bytes(b"half")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_writer_leaves_no_version_and_is_swept_by_the_next(repository: ModelRepository) -> None:
    killed = subprocess.run([sys.executable, "-c", _KILLED_WRITER, str(repository.root)], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert repository.versions() == []

    store(repository, small_manifest())

    assert [path.name for path in (repository.root / "small").iterdir()] == ["one"]


def test_a_second_writer_of_a_name_waits_and_says_so(repository: ModelRepository) -> None:
    waiting = threading.Event()

    def write() -> None:
        with repository.writing("small", lambda progress: waiting.set() if progress.stage is Stage.WAITING else None):
            pass

    second = threading.Thread(target=write)
    with repository.writing("small"):
        second.start()
        assert waiting.wait(30)
        assert second.is_alive()
    second.join(30)
    assert not second.is_alive()


def test_writers_of_different_names_do_not_wait(repository: ModelRepository) -> None:
    waits: list[Progress] = []

    with repository.writing("small"), repository.writing("large", waits.append):
        assert waits == []


def test_one_version_or_the_whole_model_can_be_removed(repository: ModelRepository) -> None:
    for version in ("one", "two", "three"):
        store(repository, small_manifest(version=version))

    assert repository.remove("small@two") == ["small@two"]
    assert [version.manifest.version for version in repository.versions()] == ["one", "three"]
    assert repository.remove("small") == ["small@one", "small@three"]
    assert not (repository.root / "small").exists()
    with pytest.raises(ModelNotStored):
        repository.remove("small")


def test_a_model_folder_that_cannot_be_made_is_a_clear_refusal(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")

    with pytest.raises(StorageUnavailable, match="cannot be used"), ModelRepository(tmp_path / "file").writing("small"):
        pass


def test_facts_carry_the_identity_of_model_and_engine(repository: ModelRepository) -> None:
    version = store(repository, small_manifest())
    engine = EngineIdentity("openvino-genai", "2026.4.1", "exact")

    facts = version.facts(engine=engine, max_context_tokens=1024)

    assert facts.qualified_name == "small@one"
    assert facts.engine == "openvino-genai 2026.4.1 exact"
    assert facts.max_context_tokens == 1024
    assert facts.fingerprint != version.manifest.fingerprint
    assert facts.defaults.sampling.temperature == 0.2
    assert facts.end_token_ids == {2}


def test_a_context_limit_never_exceeds_the_models_own(repository: ModelRepository) -> None:
    version = store(repository, small_manifest())

    assert version.facts(engine=EngineIdentity("x", "1", ""), max_context_tokens=10**6).max_context_tokens == 8192
