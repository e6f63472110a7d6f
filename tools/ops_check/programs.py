"""The programs that the checks run: they lie beside the interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

_LONGEST_S = 300


def run(
    program: str, *arguments: str | Path, folder: Path, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run it in a folder, with variables beside those of this process; what it says is in the result."""
    return subprocess.run(
        [Path(sys.executable).parent / program, *arguments],
        cwd=folder,
        env=os.environ | dict(environment or {}),
        capture_output=True,
        text=True,
        check=False,
        timeout=_LONGEST_S,
    )


def complaints(done: subprocess.CompletedProcess[str]) -> list[str]:
    """What a program that failed has said, line by line; nothing when it has not failed."""
    if not done.returncode:
        return []
    said = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    return said or [f"{Path(done.args[0]).name}: exit status {done.returncode}"]
