"""Names of models and versions: plain folder names on every system, whatever the source called itself."""

from __future__ import annotations

import re

from inferwire_server.models.errors import InvalidModelName

_NAME = re.compile(r"[a-z0-9](?:[a-z0-9._-]{0,94}[a-z0-9])?")
_RESERVED = {"con", "prn", "aux", "nul", *(f"{port}{number}" for port in ("com", "lpt") for number in range(1, 10))}


def check_name(name: str, what: str) -> str:
    """Return the name. Raises InvalidModelName; `what` is `model name` or `version`."""
    if _NAME.fullmatch(name) is None or ".." in name or name.split(".")[0] in _RESERVED:
        raise InvalidModelName(
            f"{what} {name[:100]!r} is not usable",
            "Use at most 96 of a-z, 0-9, '.', '_' and '-', beginning and ending with a letter or digit.",
        )
    return name


def name_from(text: str) -> str:
    """Derive a model name from a file, folder or repository name. Raises InvalidModelName when nothing is left."""
    slug = re.sub(r"[^a-z0-9._]+", "-", text.lower())
    slug = re.sub(r"\.{2,}", ".", slug)[:96].strip("._-")
    return check_name(slug, "model name")


def split_reference(reference: str) -> tuple[str, str | None]:
    """Split `name` or `name@version`. Raises InvalidModelName."""
    name, separator, version = reference.partition("@")
    check_name(name, "model name")
    return name, check_name(version, "version") if separator else None
