"""Every file of k8s/ has its caption in k8s/README.md, and every caption its file."""

from __future__ import annotations

import re
from pathlib import Path

_CAPTION = re.compile(r"^\| `((?:base|components|overlays)/[^`]+)` \| \S", re.MULTILINE)


def problems(root: Path) -> list[str]:
    """Files without a caption, captions without a file."""
    folder = root / "k8s"
    files = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()} - {"README.md"}
    captions = set(_CAPTION.findall((folder / "README.md").read_text()))
    return [f"k8s/{name}: no caption in k8s/README.md" for name in sorted(files - captions)] + [
        f"k8s/README.md: there is no {name}" for name in sorted(captions - files)
    ]
