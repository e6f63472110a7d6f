"""Each planted fault is noticed by a test: the proof that the tests would notice a real one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import inferwire_server
import pytest

from tests.engines.tensorrt_llm.planted_faults import FAULTS, Fault

_ROOT = Path(__file__).parents[3]
_HERE = Path(__file__).parent.relative_to(_ROOT)


def planted(fault: Fault, folder: Path) -> Path:
    """A copy of the server with the fault in it."""
    package = folder / "inferwire_server"
    shutil.copytree(Path(inferwire_server.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    for name, before, after in fault.changes:
        file = package / "engines" / "tensorrt_llm" / name
        text = file.read_text()
        assert text.count(before) == 1, f"{name} has {text.count(before)} places like {before!r}"
        file.write_text(text.replace(before, after))
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS, ids=[fault.name for fault in FAULTS])
def test_a_planted_fault_is_noticed(fault: Fault, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(planted(fault, tmp_path))}
    target = str(_HERE / fault.noticed_by)
    arguments = ["-m", "pytest", "-x", "-q", "--timeout=8", "-p", "no:cacheprovider", target]
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=_ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=55,
        check=False,
    )
    assert done.returncode == 1, done.stdout[-2000:]


def test_every_fault_still_has_its_place(tmp_path: Path) -> None:
    for number, fault in enumerate(FAULTS):
        planted(fault, tmp_path / str(number))
    assert len(FAULTS) >= 10
