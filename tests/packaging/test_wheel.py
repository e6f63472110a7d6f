from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def names(wheel: Path) -> set[str]:
    return set(zipfile.ZipFile(wheel).namelist())


@pytest.mark.parametrize("package", ["inferwire", "inferwire_server"])
def test_wheel_holds_both_packages_and_says_they_are_typed(names: set[str], package: str) -> None:
    assert {f"{package}/__init__.py", f"{package}/py.typed"} <= names


def test_wheel_holds_the_generated_stubs_and_their_types(names: set[str]) -> None:
    assert {f"inferwire/v1/inference_pb2{end}" for end in (".py", ".pyi", "_grpc.py", "_grpc.pyi")} <= names


def test_wheel_holds_every_module_of_the_tree(names: set[str]) -> None:
    sources = [ROOT / "server", ROOT / "clients" / "python" / "src"]
    modules = {path.relative_to(source).as_posix() for source in sources for path in source.rglob("*.py")}

    assert modules <= names


def test_wheel_holds_nothing_else_at_its_top(names: set[str]) -> None:
    top = {name.split("/")[0] for name in names}

    assert {name for name in top if not name.endswith(".dist-info")} == {"inferwire", "inferwire_server"}


def test_source_distribution_holds_what_a_wheel_is_built_from(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "--target", "sdist", "--directory", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)

    with tarfile.open(next(tmp_path.glob("*.tar.gz"))) as archive:
        top = {name.split("/")[1] for name in archive.getnames()}
    assert {"server", "clients", "proto", "pyproject.toml", "README.md", "LICENSE", "PKG-INFO"} <= top
    assert not top & {".venv", "tests", "build", "tools"}
