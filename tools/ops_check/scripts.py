"""Bash can read the scripts that pods run."""

from __future__ import annotations

import subprocess
from pathlib import Path


def problems(root: Path) -> list[str]:
    """What it cannot."""
    found = []
    for script in sorted((root / "k8s").rglob("*.sh")):
        done = subprocess.run(["bash", "-n", script], capture_output=True, text=True, check=False)  # noqa: S607
        found += [line.replace(f"{root}/", "") for line in done.stderr.splitlines()]
    return found
