"""What priority classes do for each other and to each other."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial

from inferwire_server.domain.generation import Priority
from inferwire_server.scheduling.fair_queue import FairQueue

from bench.quantiles import quantile
from bench.simulation.overload import WARM_UP_S, capacity
from bench.simulation.server import SLOTS, Policies, SimulatedServer
from bench.simulation.workload import Callers, Request, poisson, seeded

INTERACTIVE_LOAD = 1.1
STANDARD_ARRIVES_AT_S = 1.0
OVERLOAD_S = 30.0
BATCH_RUN_S = 330.0
LONG_OUTPUT_TOKENS = 400
SHORT_ANSWERS = Callers(
    tenant="people", priority=Priority.INTERACTIVE, fixed_output_tokens=8, first_token_target_s=None
)
PEOPLE = Callers(tenant="people", priority=Priority.INTERACTIVE, first_token_target_s=None)
NIGHTLY = Callers(tenant="nightly", priority=Priority.BATCH, first_token_target_s=None, deadline_s=(1e6, 1e6))

AGEING = Policies(predicts=False)
NO_AGEING = Policies(predicts=False, make_queue=partial(FairQueue[Request], ageing_s=math.inf))


@dataclass(frozen=True, slots=True, kw_only=True)
class AgeingFigures:
    """One standard request under 30 s of interactive overload."""

    standard_first_token_s: float
    interactive_first_token_p99_s: float
    interactive_starts_in_order: bool


@cache
def ageing(policies: Policies, *, seed: int = 41) -> AgeingFigures:
    """Interactive requests of 8 tokens at 110 % of capacity, a standard one at 1 s."""
    rate = INTERACTIVE_LOAD * capacity(SHORT_ANSWERS).requests_per_s
    interactive = poisson(SHORT_ANSWERS, rate=rate, until_s=OVERLOAD_S, seed=seed)
    standard = Callers(tenant="service", fixed_output_tokens=100, first_token_target_s=None).draw(
        seeded(seed + 1), STANDARD_ARRIVES_AT_S
    )
    server = SimulatedServer(policies)
    server.offer([*interactive, standard])
    server.run()
    starts = [request.started_at or math.inf for request in interactive]
    return AgeingFigures(
        standard_first_token_s=standard.first_token_s or math.inf,
        interactive_first_token_p99_s=_first_token(interactive, 0.99),
        interactive_starts_in_order=starts == sorted(starts),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class InversionFigures:
    """One interactive request that finds every slot taken by long outputs and as many more waiting."""

    started_after_s: float
    second_release_s: float
    """Until the second slot is released, which is the bound."""


@cache
def inversion(holders: Priority, *, seed: int = 51) -> InversionFigures:
    """The engine is full of outputs of 400 tokens of a lower class, begun at once."""
    rng = seeded(seed)
    long = Callers(
        tenant="service", priority=holders, fixed_output_tokens=LONG_OUTPUT_TOKENS, first_token_target_s=None
    )
    held = [long.draw(rng, 0.0) for _ in range(2 * SLOTS)]
    urgent = PEOPLE.draw(rng, 8.0)
    server = SimulatedServer(AGEING)
    server.offer([*held, urgent])
    server.run()
    releases = sorted(
        request.ended_at for request in held if request.ended_at is not None and request.ended_at > urgent.arrived_at
    )
    started_at = urgent.started_at if urgent.started_at is not None else math.inf
    return InversionFigures(
        started_after_s=started_at - urgent.arrived_at, second_release_s=releases[1] - urgent.arrived_at
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchFigures:
    """People at half the capacity; with or without a batch load that would fill any engine."""

    interactive_first_token_p50_s: float
    interactive_first_token_p99_s: float
    interactive_tokens_per_s: float
    batch_tokens_per_s: float
    """Tokens of batch outputs and of their prompts, each counted once."""
    recomputed_tokens_per_s: float
    """Prompt and output tokens of preempted batch requests that were computed again."""


@cache
def batch_beside_people(
    *, batch: bool, reserved_slots: int = 1, preempts: bool = False, seed: int = 61
) -> BatchFigures:
    """What batch work adds, and what it costs those who wait."""
    rate = capacity().requests_per_s
    people = poisson(PEOPLE, rate=0.5 * rate, until_s=BATCH_RUN_S, seed=seed)
    nightly = poisson(NIGHTLY, rate=1.5 * rate, until_s=BATCH_RUN_S, seed=seed + 1) if batch else []
    make_queue = partial(FairQueue[Request], reserved_slots=reserved_slots)
    server = SimulatedServer(Policies(predicts=False, make_queue=make_queue, preempts_batch=preempts))
    server.offer([*people, *nightly])
    server.run(until_s=BATCH_RUN_S)
    counted = [request for request in people if request.arrived_at >= WARM_UP_S]
    done = [request for request in nightly if request.ended_at is not None and request.ended_at >= WARM_UP_S]
    window_s = BATCH_RUN_S - WARM_UP_S
    useful = sum(request.prompt_tokens + request.produced_tokens for request in done if request.produced_tokens)
    return BatchFigures(
        interactive_first_token_p50_s=_first_token(counted, 0.5),
        interactive_first_token_p99_s=_first_token(counted, 0.99),
        interactive_tokens_per_s=sum(request.spent_tokens for request in counted) / window_s,
        batch_tokens_per_s=useful / window_s,
        recomputed_tokens_per_s=(sum(request.spent_tokens for request in done) - useful) / window_s,
    )


def _first_token(requests: Sequence[Request], share: float) -> float:
    return quantile([request.first_token_s for request in requests if request.first_token_s is not None], share)
