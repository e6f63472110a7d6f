"""hadolint finds nothing in the images' recipes."""

from __future__ import annotations

from pathlib import Path

from tools.ops_check.programs import complaints, run


def problems(root: Path) -> list[str]:
    """hadolint's findings."""
    recipes = sorted(path.relative_to(root) for path in (root / "docker").glob("Dockerfile*"))
    return complaints(run("hadolint", *recipes, folder=root))
