"""What is left of an engine's capacity under overload, with and without the policies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

from inferwire_server.scheduling.admission_policy import Bounds

from bench.quantiles import quantile
from bench.simulation.fifo_queue import FifoQueue
from bench.simulation.server import BOUNDED, UNBOUNDED, Policies, SimulatedServer
from bench.simulation.workload import Callers, Outcome, Request, poisson, seeded

RUN_S = 615.0
"""10,000 requests at twice the capacity."""
WARM_UP_S = 30.0
WORKLOAD = Callers()
LONGER_OUTPUTS = Callers(mean_output_tokens=200.0)
SHORT_DEADLINES = Callers(deadline_s=(2.0, 10.0))

AS_SHIPPED = Policies()
NO_ESTIMATOR = Policies(predicts=False)
UNBOUNDED_QUEUE = Policies(predicts=False, bounds=UNBOUNDED)
HAND_TUNED = Policies(
    predicts=False, bounds=Bounds(waiting_requests=16, waiting_prompt_tokens=BOUNDED.waiting_prompt_tokens)
)
"""No estimator, and the queue bound that does best for WORKLOAD."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """Of a saturated engine: closed loop, first come first served."""

    requests_per_s: float
    tokens_per_s: float
    """Prompt and output."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OverloadFigures:
    """Over the requests that arrived after the warm-up."""

    requests: int
    goodput_share: float
    """Tokens of good requests a second, relative to the capacity."""
    wasted_share: float
    """Of all tokens computed, those of requests that were not good."""
    outcomes: dict[Outcome, int]
    refused_while_waiting: int
    first_token_p50_s: float
    first_token_p99_s: float
    forecast_error_p10_s: float
    """First token later (positive) or sooner than forecast at arrival."""
    forecast_error_p90_s: float


@cache
def capacity(callers: Callers = WORKLOAD, *, clients: int = 64, run_s: float = 300.0, seed: int = 1) -> Capacity:
    """Each client sends its next request when the last one has ended."""
    rng = seeded(seed)
    ended: list[Request] = []
    server = SimulatedServer(Policies(make_queue=FifoQueue, bounds=UNBOUNDED, predicts=False))

    def send_next(request: Request, now: float) -> None:
        ended.append(request)
        server.offer([callers.draw(rng, now)])

    server.on_ended(send_next)
    server.offer([callers.draw(rng, 0.0) for _ in range(clients)])
    server.run(until_s=run_s)
    counted = [request for request in ended if request.ended_at is not None and request.ended_at >= WARM_UP_S]
    window_s = run_s - WARM_UP_S
    return Capacity(
        requests_per_s=len(counted) / window_s,
        tokens_per_s=sum(request.spent_tokens for request in counted) / window_s,
    )


@cache
def overload(policies: Policies, callers: Callers = WORKLOAD, *, load: float = 2.0, seed: int = 2) -> OverloadFigures:
    """Poisson arrivals at `load` times the capacity of the same workload."""
    full = capacity(replace(callers, deadline_s=WORKLOAD.deadline_s))
    requests = poisson(callers, rate=load * full.requests_per_s, until_s=RUN_S, seed=seed)
    server = SimulatedServer(policies)
    server.offer(requests)
    server.run()
    return _figures(requests, full)


def _figures(requests: Sequence[Request], full: Capacity) -> OverloadFigures:
    counted = [request for request in requests if request.arrived_at >= WARM_UP_S]
    good_tokens = sum(request.spent_tokens for request in counted if request.is_good)
    spent_tokens = sum(request.spent_tokens for request in counted)
    first_tokens = [request.first_token_s for request in counted if request.first_token_s is not None]
    errors = [
        request.first_token_s - request.forecast_s
        for request in counted
        if request.first_token_s is not None and request.forecast_s is not None
    ]
    return OverloadFigures(
        requests=len(requests),
        goodput_share=good_tokens / (RUN_S - WARM_UP_S) / full.tokens_per_s,
        wasted_share=1.0 - good_tokens / spent_tokens,
        outcomes={outcome: sum(request.outcome is outcome for request in counted) for outcome in Outcome},
        refused_while_waiting=sum(
            request.outcome is Outcome.WOULD_EXCEED and request.ended_at != request.arrived_at for request in counted
        ),
        first_token_p50_s=quantile(first_tokens, 0.5),
        first_token_p99_s=quantile(first_tokens, 0.99),
        forecast_error_p10_s=quantile(errors, 0.1),
        forecast_error_p90_s=quantile(errors, 0.9),
    )
