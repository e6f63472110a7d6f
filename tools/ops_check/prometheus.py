"""promtool accepts Prometheus's files, and the tests of its rules pass."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from tools.ops_check.rules_files import FOLDER, TESTS

_LONGEST_S = 300


def problems(root: Path) -> list[str]:
    """What promtool says of the files; first of all when it is not installed."""
    promtool = shutil.which("promtool")
    if promtool is None:
        return ["promtool is not installed: it is part of Debian's package prometheus"]
    for command in (["check", "config", "prometheus.yml"], ["test", "rules", TESTS]):
        if found := _complaints([promtool, *command], root / FOLDER):
            return found
    return []


def _complaints(command: list[str], folder: Path) -> list[str]:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=_LONGEST_S)
    lines = [line.strip() for line in (done.stdout + done.stderr).splitlines()]
    return [line for line in lines if line and "SUCCESS" not in line] if done.returncode else []
