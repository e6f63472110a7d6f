"""Figures for people: a Markdown table."""

from __future__ import annotations

from collections.abc import Sequence


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A title and a table with padded columns, the first left-aligned."""
    widths = [max(len(line[at]) for line in (columns, *rows)) for at in range(len(columns))]
    lines = [_line(columns, widths), "|".join(["", *("-" * (width + 2) for width in widths), ""])]
    lines += [_line(row, widths) for row in rows]
    return "\n".join([f"### {title}", "", *lines, ""])


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = [
        cell.ljust(width) if at == 0 else cell.rjust(width)
        for at, (cell, width) in enumerate(zip(cells, widths, strict=True))
    ]
    return "| " + " | ".join(padded) + " |"
