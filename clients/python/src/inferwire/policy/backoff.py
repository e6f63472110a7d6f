"""Delays that spread retries out."""

from __future__ import annotations

from random import Random

_MOST_DOUBLINGS = 32
_HINT_SPREAD = 0.2


def full_jitter(retry: int, base_s: float, cap_s: float, rng: Random) -> float:
    """Seconds before the given retry (0 is the first): U(0, min(cap, base x 2^retry)), Brooker's full jitter."""
    return rng.uniform(0.0, min(cap_s, base_s * 2.0 ** min(retry, _MOST_DOUBLINGS)))


def after_hint(hint_s: float, rng: Random) -> float:
    """Seconds to wait for a server's hint: never less and up to a fifth more, so that callers come back spread out."""
    return hint_s * rng.uniform(1.0, 1.0 + _HINT_SPREAD)
