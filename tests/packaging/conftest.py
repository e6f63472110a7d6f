"""One wheel built from the tree and one environment that holds nothing but its bare install, for the whole session."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "--quiet"]


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The distribution as users get it."""
    folder = tmp_path_factory.mktemp("dist")
    _run([*PIP, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(ROOT)])
    return next(folder.glob("inferwire-*.whl"))


@pytest.fixture(scope="session")
def bare(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment with the wheel, without any extra."""
    folder = tmp_path_factory.mktemp("bare")
    venv.create(folder, with_pip=False, symlinks=True)
    python = folder / "bin" / "python"
    install = [*PIP, "--python", str(python), "install"]
    try:
        _run([*install, "--require-hashes", "--requirement", str(ROOT / "requirements" / "base.txt")])
    except subprocess.CalledProcessError as failed:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"the package index is out of reach: {failed.stderr.strip().splitlines()[-1]}")
    _run([*install, "--no-deps", str(wheel)])
    return python


def _run(command: list[str]) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)
