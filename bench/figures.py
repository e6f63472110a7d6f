"""What a measurement gives: a number with its spread, and what it should be."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One line of the table. `low` and `high` are the extremes of the repetitions behind `value`."""

    name: str
    value: float
    unit: str = ""
    """Empty for a ratio."""
    low: float = math.nan
    high: float = math.nan
    at_most: float | None = None
    at_least: float | None = None
    detail: str = ""
    """The absolute figures behind it, and what it counts."""

    @property
    def is_met(self) -> bool | None:
        """Whether it is what it should be; None when nothing was asked of it or nothing was measured."""
        if math.isnan(self.value) or (self.at_most is None and self.at_least is None):
            return None
        return (self.at_most is None or self.value <= self.at_most) and (
            self.at_least is None or self.value >= self.at_least
        )

    def cells(self) -> list[str]:
        """For a table of name, value, spread, aim, verdict and detail."""
        aim = f"<= {self.at_most:g}" if self.at_most is not None else ""
        if self.at_least is not None:
            aim = f">= {self.at_least:g}"
        verdict = {True: "met", False: "MISSED", None: ""}[self.is_met]
        spread = "" if math.isnan(self.low) else f"{_short(self.low)} to {_short(self.high)}"
        value = "not measured" if math.isnan(self.value) else f"{_short(self.value)} {self.unit}".strip()
        return [self.name, value, spread, aim, verdict, self.detail]

    def as_json(self) -> dict[str, Any]:
        """All of it; what is not a number becomes null."""
        fields = asdict(self) | {"is_met": self.is_met}
        return {key: None if isinstance(value, float) and math.isnan(value) else value for key, value in fields.items()}


COLUMNS = ("figure", "value", "spread", "aim", "", "behind it")


def figure_of(
    name: str,
    values: Sequence[float],
    *,
    unit: str = "",
    at_most: float | None = None,
    at_least: float | None = None,
    detail: str = "",
) -> Figure:
    """The median of repetitions, with their extremes."""
    return Figure(
        name=name,
        value=median(values),
        unit=unit,
        low=min(values),
        high=max(values),
        at_most=at_most,
        at_least=at_least,
        detail=detail,
    )


def absent(name: str, why: str) -> Figure:
    """A figure that this installation cannot give."""
    return Figure(name=name, value=math.nan, detail=why)


def _short(value: float) -> str:
    if value == 0 or abs(value) >= 100:
        return f"{value:.0f}"
    return f"{value:.3g}" if abs(value) < 1 else f"{value:.2f}"
