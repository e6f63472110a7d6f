"""Every reason, with and without a hint, before and after Started: what the caller gets, and what it cost.

The first region answers so and recovers; the second serves. Waiting moves an injected clock.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import pytest
from inferwire import BlockingResilientChannel, ResilientChannel, ResilientRpcError
from inferwire.channels import Fleet
from inferwire.errors import Code, Reason
from inferwire.settings import BudgetPolicy
from inferwire.testing import PROXY_RESET, RESET, BareStatus, FakeServer, Refusal, Script

from tests.client.regions_of_fakes import Waits, blocking_text_of, config_of, fakes, request, stub_of, text_of

TEXT = "Hello, world!"
HINT_S = 0.4
LONGEST_JITTER_S = 0.05
FAULTS = (Reason.ENGINE_DOWN, Reason.INTERNAL)


@dataclass(frozen=True)
class Outcome:
    """What one call leads to."""

    attempts: tuple[int, int] = (1, 0)
    """Received by the first and by the second region."""
    waits: tuple[float, float] = (0.0, 0.0)
    """Least and most seconds waited between attempts."""
    budget_spent: int = 0
    failures_of_first: int = 0
    """As its breaker counts afterwards."""
    is_served: bool = False


FINAL = Outcome()
ELSEWHERE = Outcome(attempts=(1, 1), is_served=True)


def expected(reason: Reason, *, hint: bool, started: bool) -> Outcome:
    """The decision table, written down once more."""
    faults = int(reason in FAULTS)
    if started:
        resumes = reason in (Reason.ENGINE_DOWN, Reason.DRAINING)
        return replace(ELSEWHERE if resumes else FINAL, failures_of_first=faults)
    if reason is Reason.WOULD_EXCEED:
        return replace(ELSEWHERE, budget_spent=1)
    if not hint:
        return replace(FINAL, failures_of_first=faults)
    match reason:
        case Reason.DRAINING:
            return ELSEWHERE
        case Reason.OVERLOADED:
            return replace(ELSEWHERE, budget_spent=1)
        case Reason.QUOTA:
            return Outcome(attempts=(2, 0), waits=(HINT_S, 1.2 * HINT_S), is_served=True)
        case Reason.STARTING | Reason.ENGINE_DOWN:
            return replace(ELSEWHERE, waits=(0.0, LONGEST_JITTER_S), budget_spent=1, failures_of_first=faults)
        case _:
            return replace(FINAL, failures_of_first=faults)


async def outcome_of(script: Script, method: str, *, is_blocking: bool) -> Outcome:
    """Make one call and see."""
    waits = Waits()
    async with fakes((script, Script()), Script()) as (a, b):
        config = config_of(a, b, budget=BudgetPolicy(ratio=0.0, window_s=1e6))
        if is_blocking:
            channel = BlockingResilientChannel(config, open_fleet=waits.fleet())
            call = asyncio.to_thread(blocking_text_of, channel, is_stream=method == "StreamGenerate")
            [text] = await asyncio.gather(call, return_exceptions=True)
            outcome = _seen(text, a, b, waits, channel.fleet())
            await asyncio.to_thread(channel.close)
            return outcome
        async with ResilientChannel(config, open_fleet=waits.fleet()) as own:
            [text] = await asyncio.gather(text_of(getattr(stub_of(own), method)(request())), return_exceptions=True)
            return _seen(text, a, b, waits, own.fleet())


def _seen(text: Any, a: FakeServer, b: FakeServer, waits: Waits, fleet: Fleet) -> Outcome:
    assert text == TEXT or isinstance(text, ResilientRpcError), text
    failures = repr(fleet.links[0].state.breaker).rpartition(", ")[2].split()[0]
    waited = round(sum(waits.slept), 6)
    return Outcome(
        attempts=(len(a.calls), len(b.calls)),
        waits=(waited, waited),
        budget_spent=round(100 - fleet.budget.balance(waits.now)),
        failures_of_first=int(failures),
        is_served=text == TEXT,
    )


def assert_as(seen: Outcome, wanted: Outcome) -> None:
    assert wanted.waits[0] <= seen.waits[0] <= wanted.waits[1]
    assert replace(seen, waits=wanted.waits) == wanted


KINDS = [("Generate", False), ("StreamGenerate", False), ("Generate", True), ("StreamGenerate", True)]


@pytest.mark.parametrize("reason", list(Reason), ids=str)
@pytest.mark.parametrize(("method", "is_blocking"), KINDS, ids=["unary", "stream", "blocking unary", "blocking stream"])
async def test_a_reason_decides_what_follows(reason: Reason, method: str, is_blocking: bool) -> None:
    for hint, started in product((False, True), (False, True)):
        refusal = Refusal(reason, hint_s=HINT_S if hint else None)
        script = Script(mishap=refusal, after_tokens=2 if started else None)

        seen = await outcome_of(script, method, is_blocking=is_blocking)

        assert_as(seen, expected(reason, hint=hint, started=started))


@pytest.mark.parametrize(("method", "is_blocking"), KINDS, ids=["unary", "stream", "blocking unary", "blocking stream"])
@pytest.mark.parametrize("started", [False, True], ids=["before Started", "after Started"])
@pytest.mark.parametrize(
    ("status", "wanted"),
    [
        (RESET, replace(ELSEWHERE, failures_of_first=1)),
        (PROXY_RESET, replace(ELSEWHERE, failures_of_first=1)),
        (BareStatus(Code.CANCELLED), replace(ELSEWHERE, failures_of_first=1)),
        (BareStatus(Code.INTERNAL), replace(ELSEWHERE, failures_of_first=1, budget_spent=1)),
        (BareStatus(Code.UNKNOWN), replace(ELSEWHERE, failures_of_first=1, budget_spent=1)),
        (BareStatus(Code.RESOURCE_EXHAUSTED), FINAL),
        (BareStatus(Code.RESOURCE_EXHAUSTED, pushback_ms="-1"), FINAL),
        (BareStatus(Code.RESOURCE_EXHAUSTED, pushback_ms="400"), replace(ELSEWHERE, budget_spent=1)),
        (BareStatus(Code.NOT_FOUND), FINAL),
        (BareStatus(Code.UNAUTHENTICATED), FINAL),
        (BareStatus(Code.DATA_LOSS), FINAL),
    ],
    ids=str,
)
async def test_a_status_without_a_reason_is_read_by_its_code(
    method: str, is_blocking: bool, started: bool, status: BareStatus, wanted: Outcome
) -> None:
    if started and method == "StreamGenerate":
        # What had begun is resumed outside the budget; a hint says nothing then.
        is_refused = status.code is Code.RESOURCE_EXHAUSTED
        wanted = FINAL if is_refused else replace(wanted, budget_spent=0)

    script = Script(mishap=status, after_tokens=2 if started else None)

    assert_as(await outcome_of(script, method, is_blocking=is_blocking), wanted)
