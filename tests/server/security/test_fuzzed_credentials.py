"""Whatever credentials come, the answer is a status of the table, and the credential is not in it nor in the log."""

from __future__ import annotations

import pytest

from tests.fuzz.credential_fuzzing import fuzz_credentials

_SEED = 20261201
_CALLS = 800


@pytest.mark.timeout(300)
async def test_random_credentials_are_answered_and_come_back_nowhere() -> None:
    findings = await fuzz_credentials(_SEED, range(_CALLS))

    assert findings.faults == [], str(findings)
    assert sum(findings.outcomes.values()) == _CALLS
    assert findings.outcomes["UNAUTHENTICATED"] > _CALLS / 10, str(findings)
    assert findings.outcomes["PERMISSION_DENIED"] > _CALLS / 50, str(findings)
    assert findings.outcomes["OK"] > _CALLS / 50, "too few get in to prove anything"
