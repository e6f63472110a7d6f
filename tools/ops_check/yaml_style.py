"""yamllint finds nothing in the YAML of docker/ and k8s/."""

from __future__ import annotations

from pathlib import Path

from tools.ops_check.programs import complaints, run

_STYLE = """
extends: default
rules:
  line-length: {max: 160}
  document-start: disable
  comments: {min-spaces-from-content: 1}
  comments-indentation: disable
  truthy: {check-keys: false}
  octal-values: disable
"""


def problems(root: Path) -> list[str]:
    """yamllint's findings."""
    folders = [name for name in ("docker", "k8s") if (root / name).is_dir()]
    return complaints(run("yamllint", "--strict", "--format", "parsable", "-d", _STYLE, *folders, folder=root))
