"""Reading, digesting and durably writing model files."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from inferwire_server.models.errors import StorageFull, StorageUnavailable

_CHUNK = 4 << 20
Advance = Callable[[int], None]
"""Called with the bytes handled so far."""


def sha256_of(path: Path, advance: Advance) -> str:
    """Digest a file as lower-case hex."""
    with path.open("rb") as source:
        return _drain(source, None, advance)


def copy_with_sha256(source: IO[bytes], target: Path, advance: Advance) -> str:
    """Copy a stream into a new file, and digest it on the way, as lower-case hex."""
    with target.open("xb") as sink:
        return _drain(source, sink, advance)


def make_durable(folder: Path) -> None:
    """Flush the files of a folder, then its entries, to the disk."""
    for path in folder.iterdir():
        _sync(path)
    _sync(folder)


def sync_folder(folder: Path) -> None:
    """Flush a folder's entries, so that a rename inside it survives a power cut."""
    _sync(folder)


def require_space(folder: Path, needed: int) -> None:
    """Raise StorageFull unless the disk of `folder` has `needed` free bytes."""
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise StorageFull(
            f"{folder} has {megabytes(free)} free; this model needs {megabytes(needed)} while it is pulled",
            "Free some space, or choose a model folder on another disk.",
        )


@contextlib.contextmanager
def storage_errors(folder: Path) -> Iterator[None]:
    """Turn the operating system's refusals into StorageFull and StorageUnavailable."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            problem = f"the disk that holds {folder} is full"
            raise StorageFull(problem, "Free some space, or choose a model folder on another disk.") from error
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EIO):
            problem = f"{error.filename or folder} cannot be used: {error.strerror}"
            raise StorageUnavailable(problem, "Check its owner and mount, or choose another model folder.") from error
        raise


def megabytes(count: int) -> str:
    """Write a number of bytes for people."""
    return f"{count / 1e6:,.0f} MB"


def _drain(source: IO[bytes], sink: IO[bytes] | None, advance: Advance) -> str:
    digest, done = hashlib.sha256(), 0
    while chunk := source.read(_CHUNK):
        digest.update(chunk)
        if sink is not None:
            sink.write(chunk)
        done += len(chunk)
        advance(done)
    return digest.hexdigest()


def _sync(path: Path) -> None:
    if os.name == "nt" and path.is_dir():
        return  # Windows cannot open a folder; it journals renames itself
    descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
