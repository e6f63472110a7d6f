"""The stubs in the tree are what the protos say."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
GENERATOR = ROOT / ".venv-stubs" / "bin" / "python"

pytestmark = pytest.mark.skipif(not GENERATOR.exists(), reason="no stub generator: run `make test`, which installs it")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of the protos, the stubs and the generator."""
    for folder in ("proto", "clients/python/src/inferwire/v1"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "tools").mkdir()
    shutil.copy(ROOT / "tools" / "generate_stubs.py", tmp_path / "tools")
    return tmp_path


def check(tree: Path) -> subprocess.CompletedProcess[str]:
    command = [str(GENERATOR), str(tree / "tools" / "generate_stubs.py"), "--check"]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_stubs_are_fresh(tree: Path) -> None:
    done = check(tree)

    assert done.returncode == 0, done.stdout


def test_a_changed_proto_makes_its_stubs_stale(tree: Path) -> None:
    proto = tree / "proto" / "inferwire" / "v1" / "error.proto"
    proto.write_text(proto.read_text() + "\n// New.\nmessage Addition {}\n")

    done = check(tree)

    assert done.returncode == 1
    assert "error_pb2.py" in done.stdout


def test_a_stub_whose_proto_is_gone_is_stale(tree: Path) -> None:
    stubs = tree / "clients" / "python" / "src" / "inferwire" / "v1"
    (stubs / "leftover_pb2.py").write_text('"""Generated from a proto that is gone."""\n')

    done = check(tree)

    assert done.returncode == 1
    assert "leftover_pb2.py" in done.stdout
