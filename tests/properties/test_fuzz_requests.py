"""Whatever bytes arrive, they are answered, and nobody else notices.

A fault names its seed and number; `python -m tools.fuzz_requests --seed SEED --only NUMBER` makes that call again.
"""

from __future__ import annotations

import pytest
from inferwire_server.engines.scripted import Fail, Plan, PlanBook

from tests.fuzz.fuzzing import fuzz

_SEED = 20261130
_CALLS = 5_000


@pytest.mark.timeout(300)
@pytest.mark.case("H12")
async def test_random_calls_are_answered_and_their_neighbour_is_untouched() -> None:
    findings = await fuzz(_SEED, range(_CALLS))

    assert findings.faults == [], str(findings)
    assert sum(findings.outcomes.values()) == _CALLS
    assert findings.outcomes["OK"] > _CALLS / 10, "too few calls are plausible to prove anything"
    assert findings.neighbour_runs > 1


async def test_an_answer_that_is_our_fault_is_found_and_named() -> None:
    broken = PlanBook((("naïve café", Plan(mishap=Fail(lambda: ValueError("broken")))),))

    findings = await fuzz(_SEED, range(60), broken)

    assert findings.faults
    assert all("INTERNAL" in fault and f"of seed {_SEED}: /inferwire.v1." in fault for fault in findings.faults)
