"""The first thing that can go wrong on a newcomer's machine says what to do."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BASH = shutil.which("bash") or "bash"


def create_venv(folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    script = ROOT / "tools" / "create_venv.sh"
    return subprocess.run([BASH, script, folder], env=environment, capture_output=True, text=True, check=False)


def test_a_machine_without_a_new_enough_python_hears_what_to_install(tmp_path: Path) -> None:
    done = create_venv(tmp_path / "venv", PATH=str(tmp_path))

    assert done.returncode == 1
    assert "Python 3.11" in done.stderr
    assert "apt-get install python3" in done.stderr


def test_a_named_python_that_does_not_fit_is_refused_by_its_name(tmp_path: Path) -> None:
    done = create_venv(tmp_path / "venv", PATH=os.environ["PATH"], PYTHON="/bin/false")

    assert done.returncode == 1
    assert "PYTHON=/bin/false" in done.stderr
