"""Random calls against a real server, with a healthy stream beside them that must not notice."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import grpc
from inferwire_server.engines.scripted import Plan, ScriptedOptions

from tests.fuzz.random_calls import GENEROUS_TIMEOUT_S, RandomCall, random_call, response_type
from tests.polling import until
from tests.serving import Serving, request, serving, text_of

_OPTIONS = ScriptedOptions(step_base_s=0.0005, max_context_tokens=512)
AT_ONCE = 12
_HANG_S = 2 * GENEROUS_TIMEOUT_S
_FAULTS = frozenset(
    {grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN, grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DATA_LOSS}
)
_CLIENTS_OWN_WORDS = "Internal error from Core"
"""What gRPC's client makes of an answer that came while it was still sending requests."""
_NEIGHBOURS_OWN = (("x-inferwire-tenant", "neighbour"),)


@dataclass(slots=True)
class Findings:
    """What came out; `faults` names each call that was not answered as it should be."""

    outcomes: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    neighbour_runs: int = 0

    def __str__(self) -> str:
        shown = ", ".join(f"{name} {count}" for name, count in sorted(self.outcomes.items()))
        return f"{shown}; {self.neighbour_runs} neighbour runs; {len(self.faults)} faults"


async def fuzz(seed: int, indices: range, plans: Callable[[str], Plan] | None = None) -> Findings:
    """Make the calls of a seed with these numbers; ends with the server alive and quiet or with a fault saying so."""
    findings = Findings()
    async with serving(_OPTIONS, plans=plans) as server:
        neighbour = asyncio.create_task(_neighbour(server, findings), name="neighbour")
        try:
            calls = map(partial(random_call, seed), indices)
            async with asyncio.TaskGroup() as group:
                for _ in range(AT_ONCE):
                    group.create_task(make_calls(server, calls, findings))
        finally:
            neighbour.cancel()
            await asyncio.wait([neighbour])
        await _check_alive(server, findings)
    return findings


async def make_calls(server: Serving, calls: Iterator[RandomCall], findings: Findings) -> None:
    """Make each call that is left, one after the other."""
    for call in calls:
        try:
            async with asyncio.timeout(_HANG_S):
                outcome = await _outcome(server, call)
        except TimeoutError:
            outcome = "HANG"
            findings.faults.append(f"no answer to {call}")
        except AssertionError as wrong:
            outcome = "WRONG"
            findings.faults.append(f"{wrong}: {call}")
        findings.outcomes[outcome] += 1


async def _outcome(server: Serving, call: RandomCall) -> str:
    kind = "_".join("stream" if it else "unary" for it in (call.streams_requests, call.streams_answers))
    make: Any = getattr(server.channel, kind)
    under_way = make(call.method, response_deserializer=response_type(call.method).FromString)(
        iter((call.payload,)) if call.streams_requests else call.payload, timeout=call.timeout_s, metadata=call.metadata
    )
    try:
        if call.streams_answers:
            answers = [answer async for answer in under_way]
            if call.method.endswith("/StreamGenerate"):
                kinds = [answer.WhichOneof("event") for answer in answers]
                assert kinds.count("completed") == 1, "a stream without its one Completed"
                assert kinds[-1] == "completed", "events after Completed"
        else:
            await under_way
    except grpc.aio.AioRpcError as error:
        _check(call, error)
        return error.code().name
    return "OK"


def _check(call: RandomCall, error: grpc.aio.AioRpcError) -> None:
    code = error.code()
    said = f"{error.details()} {error.trailing_metadata()}"
    assert not any(secret in said for secret in call.secrets), f"it says what it was told: {said}"
    if call.streams_requests and error.details() == _CLIENTS_OWN_WORDS:
        return
    assert code not in _FAULTS, f"{code.name} {error.details()}"
    has_details = "grpc-status-details-bin" in dict(error.trailing_metadata() or ())
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        assert has_details or call.timeout_s < GENEROUS_TIMEOUT_S, "no answer within a generous deadline"
    if code is grpc.StatusCode.INVALID_ARGUMENT:
        assert has_details, "a refusal without details"


async def _neighbour(server: Serving, findings: Findings) -> None:
    message = request("The quick brown fox", sampling={"temperature": 0.0}, max_output_tokens=64)
    alone = await text_of(server.inference.StreamGenerate(message, metadata=_NEIGHBOURS_OWN))
    for run in itertools.count(1):
        try:
            async with asyncio.timeout(_HANG_S):
                text = await text_of(server.inference.StreamGenerate(message, metadata=_NEIGHBOURS_OWN))
        except (TimeoutError, grpc.aio.AioRpcError) as error:
            findings.faults.append(f"neighbour run {run} failed: {error!r}")
            continue
        findings.neighbour_runs += 1
        if text != alone:
            findings.faults.append(f"neighbour run {run} said {text!r}, not {alone!r}")


async def _check_alive(server: Serving, findings: Findings) -> None:
    if not await server.is_alive():
        findings.faults.append("the server does not answer any more")
    try:
        await until(lambda: server.is_quiet, within_s=_HANG_S)
    except AssertionError:
        findings.faults.append(f"something is left: {server.server.sessions!r}, {server.engine.load()}")
