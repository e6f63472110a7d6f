"""Patterns for names with parts: `*` stands for anything but `/`, `**` for anything."""

from __future__ import annotations

import re
from functools import lru_cache


def matches(pattern: str, text: str) -> bool:
    """Whether all of `text` fits."""
    return _compiled(pattern).fullmatch(text) is not None


@lru_cache(maxsize=1024)
def _compiled(pattern: str) -> re.Pattern[str]:
    parts = re.split(r"(\*+)", pattern)
    stars = {"": "", "*": "[^/]*"}
    return re.compile(
        "".join(stars.get(part, ".*") if part.startswith("*") else re.escape(part) for part in parts), re.DOTALL
    )
