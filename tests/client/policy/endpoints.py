"""Endpoint states for tests, in the conditions that tests ask for."""

from __future__ import annotations

from random import Random

from inferwire.policy.endpoint import EndpointState
from inferwire.settings import BreakerPolicy, ThrottlePolicy

STEADY = BreakerPolicy(open_jitter=0.0)


def endpoint(key: str, priority: int = 0, *, breaker: BreakerPolicy = STEADY) -> EndpointState:
    """An endpoint of which nothing is known; its region is the part of the key before the slash."""
    return EndpointState(
        key,
        region=key.partition("/")[0],
        priority=priority,
        breaker=breaker,
        throttle=ThrottlePolicy(),
        rng=Random(1),
    )


def open_breaker(one: EndpointState, now: float = 0.0) -> None:
    """Let it fail until its breaker opens."""
    while (permit := one.breaker.acquire(now)) is not None:
        permit.failure(now)


def refuse(one: EndpointState, times: int, now: float = 0.0) -> None:
    """Let it refuse for lack of room."""
    for _ in range(times):
        one.throttle.refused(now)
