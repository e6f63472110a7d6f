"""Delays that spread retries out."""

from __future__ import annotations

from random import Random

import pytest
from inferwire.policy.backoff import after_hint, full_jitter


@pytest.mark.parametrize(("retry", "bound_s"), [(0, 0.05), (1, 0.1), (2, 0.2), (5, 1.6), (6, 2.0), (1_000, 2.0)])
def test_a_delay_is_uniform_between_zero_and_the_doubling_bound(retry: int, bound_s: float) -> None:
    rng = Random(1)

    delays = [full_jitter(retry, 0.05, 2.0, rng) for _ in range(2_000)]

    assert 0.0 <= min(delays) < 0.01 * bound_s
    assert 0.99 * bound_s < max(delays) <= bound_s
    assert sum(delays) / len(delays) == pytest.approx(bound_s / 2, rel=0.05)


def test_a_hint_is_never_undercut_and_stretched_by_a_fifth_at_most() -> None:
    rng = Random(1)

    delays = [after_hint(0.5, rng) for _ in range(1_000)]

    assert min(delays) >= 0.5
    assert 0.59 < max(delays) <= 0.6
