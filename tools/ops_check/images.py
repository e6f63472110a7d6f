"""Which build of an image runs is said at release time, by digest, and nowhere else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tools.ops_check.rendering import rendered
from tools.release_manifests import COMPOSE, ReleaseError, image_names, released, rendering

_DIGEST = "registry.example/any@sha256:" + "0" * 64


def problems(root: Path) -> list[str]:
    """Images that are fixed in the repository, and releases that would go out without a digest."""
    documents = {each.name: each.objects for each in rendered(root) if each.is_overlay}
    if (root / "docker" / "compose.yaml").exists():
        documents[COMPOSE] = rendering(COMPOSE, root)
    return [f"{name}: {line}" for name, each in documents.items() for line in of(each)]


def of(documents: list[Any]) -> Iterator[str]:
    """What is wrong with one deployment's images."""
    names = {name for each in documents for name in image_names(each)}
    for name in sorted(names):
        if "@" in name:
            yield f"{name} fixes a build here"
        elif ":" not in name:
            yield f"{name} has no tag, which means whatever came last"
    for left_out in sorted(names):
        try:
            released(documents, dict.fromkeys(names - {left_out}, _DIGEST))
        except ReleaseError:
            continue
        yield f"a release goes out without a digest for {left_out}"
