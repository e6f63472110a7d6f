"""Scheduling parameters; recorded, never used."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True, kw_only=True)
class SchedulingParams:
    """Keyword-only, as recorded."""

    attention_dp_rank: int | None = None
    attention_dp_relax: bool | None = True
