"""Weights that may only be read: on a read-only volume, or of another user."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def openable(path: Path) -> Iterator[Path]:
    """The model, or while it is being loaded a copy of it in the temporary folder.

    OpenVINO GenAI opens a GGUF file for writing, though it writes nothing, and gives up where it may not. A model in a
    folder is only read. Raises OSError when there is no room for the copy.
    """
    if path.suffix != ".gguf" or _can_be_written(path):
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="inferwire-weights-") as folder:
        yield Path(shutil.copyfile(path, Path(folder) / path.name))


def _can_be_written(path: Path) -> bool:
    try:
        path.open("r+b").close()
    except OSError:
        return False
    return True
