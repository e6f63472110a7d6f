"""Proving that a version's folder holds exactly what its manifest says."""

from __future__ import annotations

from pathlib import Path

from inferwire_server.models.errors import VerificationFailed
from inferwire_server.models.files import sha256_of, storage_errors
from inferwire_server.models.manifest import MANIFEST_NAME, FileEntry, Manifest
from inferwire_server.models.progress import Progress, ProgressSink, Stage


def verify_folder(folder: Path, manifest: Manifest, progress: ProgressSink) -> None:
    """Raise VerificationFailed at the first file that is missing, changed, or not listed.

    Unlisted files are refused too: an engine may read a file for its name alone.
    """
    with storage_errors(folder):
        _refuse_unlisted(folder, manifest)
        total = sum(entry.size for entry in manifest.files)
        before = 0
        for entry in manifest.files:
            _verify_file(folder, manifest, entry, progress, before, total)
            before += entry.size


def _refuse_unlisted(folder: Path, manifest: Manifest) -> None:
    listed = {entry.path for entry in manifest.files} | {MANIFEST_NAME}
    extra = sorted(path.name for path in folder.iterdir() if path.name not in listed)
    if extra:
        problem = f"{folder / extra[0]} is not in the manifest of {manifest.qualified_name}"
        raise VerificationFailed(problem, "Move the file away; a model folder may hold only what was pulled.")


def _verify_file(
    folder: Path, manifest: Manifest, entry: FileEntry, progress: ProgressSink, before: int, total: int
) -> None:
    path = folder / entry.path
    advice = f"Remove {manifest.qualified_name} and pull it again; its source was {manifest.source.location}."
    if path.is_symlink() or not path.is_file():
        raise VerificationFailed(f"{path} is missing, or is not a plain file", advice)
    size = path.stat().st_size
    if size != entry.size:
        raise VerificationFailed(f"{path} has {size} bytes; the manifest says {entry.size}", advice)
    digest = sha256_of(
        path, lambda done: progress(Progress(Stage.CHECKING, manifest.qualified_name, before + done, total))
    )
    if digest != entry.sha256:
        raise VerificationFailed(
            f"{path} has sha256 {digest[:16]}…; the manifest says {entry.sha256[:16]}… (the content was changed)",
            advice,
        )
