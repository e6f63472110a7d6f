"""A cluster's rules and alerts are those of docker/prometheus."""

from __future__ import annotations

from pathlib import Path

from tools.prometheus_rule import MANIFEST, rule_manifest


def problems(root: Path) -> list[str]:
    """A manifest that is not what would be generated now."""
    if (root / MANIFEST).read_text() == rule_manifest(root):
        return []
    return [f"{MANIFEST} is stale: python -m tools.prometheus_rule >{MANIFEST}"]
