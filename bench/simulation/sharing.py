"""How tenants share an engine: a light one beside a flood, and two floods with different weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial

from inferwire_server.scheduling.fair_queue import FairQueue

from bench.quantiles import quantile
from bench.simulation.fifo_queue import FifoQueue
from bench.simulation.overload import WARM_UP_S, capacity
from bench.simulation.server import Policies, SimulatedServer
from bench.simulation.workload import Callers, Outcome, Request, poisson

HEAVY_LOAD = 2.0
"""Times the capacity."""
TIMES_LIGHTER = 10.0
RUN_S = WARM_UP_S + 300.0
WEIGHTS = {"one": 1.0, "three": 3.0}

MakeQueue = Callable[[], FairQueue[Request]]
FIFO: MakeQueue = FifoQueue
FAIR_BY_WEIGHT: MakeQueue = partial(FairQueue[Request], weights=WEIGHTS)
WITHOUT_BURSTS: MakeQueue = partial(FairQueue[Request], burst_tokens=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class LightTenantFigures:
    """Of the light tenant's requests after the warm-up."""

    requests: int
    refused: int
    first_token_p50_s: float
    first_token_p99_s: float
    release_p99_s: float
    """From an arrival that found every slot taken until a slot was released."""


@cache
def light_tenant(make_queue: MakeQueue | None, *, seed: int = 11) -> LightTenantFigures:
    """A tenant with a tenth of the rate of one that sends twice what the engine can do; alone without a queue given."""
    rate = HEAVY_LOAD * capacity().requests_per_s
    light = poisson(
        Callers(tenant="light", first_token_target_s=None), rate=rate / TIMES_LIGHTER, until_s=RUN_S, seed=seed
    )
    heavy = poisson(Callers(tenant="heavy", first_token_target_s=None), rate=rate, until_s=RUN_S, seed=seed + 1)
    server = SimulatedServer(Policies(make_queue=make_queue or FairQueue))
    server.offer(light if make_queue is None else light + heavy)
    server.run()
    counted = [request for request in light if request.arrived_at >= WARM_UP_S]
    first_tokens = [request.first_token_s for request in counted if request.first_token_s is not None]
    return LightTenantFigures(
        requests=len(counted),
        refused=sum(request.outcome is Outcome.OVERLOADED for request in counted),
        first_token_p50_s=quantile(first_tokens, 0.5),
        first_token_p99_s=quantile(first_tokens, 0.99),
        release_p99_s=quantile(server.release_waits_s, 0.99),
    )


@cache
def token_ratio(make_queue: MakeQueue, *, seed: int = 31) -> float:
    """Tokens served to tenant "three" for each of tenant "one", each sending as much as the engine can do."""
    rate = capacity().requests_per_s
    server = SimulatedServer(Policies(make_queue=make_queue))
    served = dict.fromkeys(WEIGHTS, 0)

    def count(request: Request, now: float) -> None:
        if now >= WARM_UP_S:
            served[request.tenant] += request.spent_tokens

    server.on_ended(count)
    for number, tenant in enumerate(WEIGHTS):
        callers = Callers(tenant=tenant, first_token_target_s=None)
        server.offer(poisson(callers, rate=rate, until_s=RUN_S, seed=seed + number))
    server.run(until_s=RUN_S)
    return served["three"] / served["one"]
