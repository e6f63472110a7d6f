"""What `kubectl kustomize` makes of the base, of each component on the base, and of each overlay."""

from __future__ import annotations

import functools
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tools.ops_check.programs import complaints, run

Manifest = dict[str, Any]


@dataclass(frozen=True)
class Rendered:
    """One kustomization's objects, or why there are none."""

    name: str
    """As in overlays/gpu; a component is rendered on the base."""
    objects: list[Manifest] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    @property
    def is_overlay(self) -> bool:
        return self.name.startswith("overlays/")

    def of_kind(self, kind: str) -> list[Manifest]:
        return [each for each in self.objects if each["kind"] == kind]


def problems(root: Path) -> list[str]:
    """What kustomize cannot build, or warns of."""
    return [f"{each.name}: {line}" for each in rendered(root) for line in each.complaints]


@functools.cache
def rendered(root: Path) -> tuple[Rendered, ...]:
    """Everything under k8s/, once a process."""
    return tuple(_render_all(root / "k8s"))


def _render_all(k8s: Path) -> Iterator[Rendered]:
    yield _render("base", k8s / "base", k8s)
    for folder in sorted((k8s / "components").glob("*/")):
        with tempfile.TemporaryDirectory() as scratch:
            here = Path(scratch).resolve()
            on_base = {"resources": [_way(here, k8s / "base")], "components": [_way(here, folder)]}
            (here / "kustomization.yaml").write_text(yaml.safe_dump(on_base))
            yield _render(f"components/{folder.name}", here, k8s)
    for folder in sorted((k8s / "overlays").glob("*/")):
        yield _render(f"overlays/{folder.name}", folder, k8s)


def _way(start: Path, folder: Path) -> str:
    """kustomize takes relative paths only."""
    return os.path.relpath(folder.resolve(), start)


def _render(name: str, folder: Path, k8s: Path) -> Rendered:
    done = run("kubectl", "kustomize", folder, folder=k8s)
    warnings = [line for line in done.stderr.splitlines() if line.strip()]
    if done.returncode:
        return Rendered(name, complaints=complaints(done))
    return Rendered(name, [each for each in yaml.safe_load_all(done.stdout) if each], warnings)
