from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from inferwire_server.engines.openvino.weights_file import openable

NOBODY = 65534


@pytest.fixture
def weights() -> Iterator[Path]:
    """A file in a folder that everybody may look into."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        path = Path(folder) / "model.gguf"
        path.write_bytes(b"weights")
        path.chmod(0o444)
        yield path


@contextmanager
def as_somebody_else() -> Iterator[None]:
    """Root may write everything."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


def test_weights_that_may_only_be_read_are_copied_while_they_are_loaded(weights: Path) -> None:
    with as_somebody_else(), openable(weights) as path:
        assert path != weights
        assert path.suffix == ".gguf"
        path.open("r+b").close()
        assert path.read_bytes() == b"weights"

    assert not path.parent.exists()
    assert weights.read_bytes() == b"weights"


def test_weights_that_may_be_written_are_used_where_they_are(weights: Path) -> None:
    weights.chmod(0o644)

    with openable(weights) as path:
        assert path == weights


def test_a_folder_is_used_where_it_is(weights: Path) -> None:
    with as_somebody_else(), openable(weights.parent) as path:
        assert path == weights.parent
