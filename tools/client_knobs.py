"""The table of the client's settings in docs/client.md, from the settings themselves; `--write` puts it there."""

from __future__ import annotations

import ast
import dataclasses
import enum
import inspect
import sys
from pathlib import Path
from typing import Any

from inferwire import settings

PAGE = Path(__file__).parents[1] / "docs" / "client.md"
BEGIN, END = "<!-- knobs: made by tools/client_knobs.py -->", "<!-- end of knobs -->"


def table() -> str:
    """One row a knob: its name in TOML, its default, and what it does."""
    rows = ["| knob | default | what it does |", "| --- | --- | --- |"]
    rows += [f"| `{name}` | {default} | {text} |" for name, default, text in _knobs(settings.ClientConfig, "")]
    return "\n".join(rows)


def with_table(page: str) -> str:
    """The page with a fresh table."""
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}\n\n{table()}\n\n{END}{rest.partition(END)[2]}"


def _knobs(kind: type[Any], prefix: str) -> list[tuple[str, str, str]]:
    texts = _docstrings(kind)
    knobs: list[tuple[str, str, str]] = []
    for field in dataclasses.fields(kind):
        factory = field.default_factory
        if isinstance(factory, type):
            knobs += _knobs(factory, f"{prefix}{field.name}.")
        else:
            knobs.append((prefix + field.name, _default(field.default), texts[field.name]))
        if field.name == "regions":
            knobs += _knobs(settings.Region, "regions[].")
    return knobs


def _default(value: Any) -> str:
    if value is dataclasses.MISSING:
        return "required"
    if value is None:
        return "none"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f"`{value.value}`" if isinstance(value, enum.Enum) else f"`{value:g}`"


def _docstrings(kind: type[Any]) -> dict[str, str]:
    """The string under each field, as one line."""
    [definition] = ast.parse(inspect.getsource(kind)).body
    assert isinstance(definition, ast.ClassDef)  # noqa: S101 it is one
    found = {}
    for field, text in zip(definition.body, definition.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            is_text = isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)
            found[field.target.id] = " ".join(str(text.value.value).split()) if is_text else ""  # type: ignore[attr-defined]
    return found


if __name__ == "__main__":
    if "--write" in sys.argv:
        PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    else:
        print(table())
