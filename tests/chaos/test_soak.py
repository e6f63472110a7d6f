"""Row 22: random faults on three regions of two, all at once."""

from __future__ import annotations

import os
from typing import Any

import pytest

from tests.chaos.soak import problems, soak

MINUTES = float(os.environ.get("CHAOS_MINUTES", "2"))


@pytest.mark.slow
@pytest.mark.timeout(4000)
async def test_everything_at_once_loses_doubles_and_leaves_nothing(record_property: Any) -> None:
    figures = await soak(MINUTES, seed=8)
    record_property("figures", figures)
    assert problems(figures) == [], figures["wrong"]
    assert figures["n"] > 100
    assert len(figures["faults"]) >= 6
