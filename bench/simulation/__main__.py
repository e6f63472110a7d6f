"""`python -m bench.simulation`: the scheduling policies' figures, as tables."""

from __future__ import annotations

import sys
from collections.abc import Callable

from inferwire_server.domain.generation import Priority
from inferwire_server.scheduling.fair_queue import FairQueue

from bench.simulation import overload, priorities, sharing
from bench.simulation.workload import Outcome
from bench.tables import table

OVERLOADS = (
    ("main, 2x", overload.WORKLOAD, 2.0),
    ("main, 4x", overload.WORKLOAD, 4.0),
    ("main, 0.8x", overload.WORKLOAD, 0.8),
    ("outputs twice as long, 2x", overload.LONGER_OUTPUTS, 2.0),
    ("RPC deadlines of 2-10 s, 2x", overload.SHORT_DEADLINES, 2.0),
)
VARIANTS = (
    ("as shipped", overload.AS_SHIPPED),
    ("no estimator", overload.NO_ESTIMATOR),
    ("no estimator, unbounded", overload.UNBOUNDED_QUEUE),
    ("no estimator, bound 16", overload.HAND_TUNED),
)


def main() -> None:
    """Print every table; a few minutes on a slow machine."""
    for show in (_capacities, _overloads, _light_tenant, _weights, _ageing, _inversion, _batch):
        sys.stdout.write(show() + "\n")
        sys.stdout.flush()


def _capacities() -> str:
    rows = []
    for name, callers in (("main", overload.WORKLOAD), ("outputs twice as long", overload.LONGER_OUTPUTS)):
        full = overload.capacity(callers)
        rows.append([name, f"{full.requests_per_s:.2f}", f"{full.tokens_per_s:.0f}"])
    return table("Capacity: closed loop, 64 clients", ["workload", "requests/s", "tokens/s"], rows)


def _overloads() -> str:
    columns = ["workload", "policies", "goodput / capacity", "wasted tokens", "TTFT p50, p99 (s)", "completed"]
    columns += ["overloaded", "would exceed (of it while waiting)", "expired", "forecast error p10, p90 (s)"]
    rows = []
    for name, callers, load in OVERLOADS:
        for variant, policies in VARIANTS:
            figures = overload.overload(policies, callers, load=load)
            outcomes = figures.outcomes
            rows.append(
                [
                    name,
                    variant,
                    f"{figures.goodput_share:.3f}",
                    f"{figures.wasted_share:.2%}",
                    f"{figures.first_token_p50_s:.2f}, {figures.first_token_p99_s:.2f}",
                    str(outcomes[Outcome.COMPLETED]),
                    str(outcomes[Outcome.OVERLOADED]),
                    f"{outcomes[Outcome.WOULD_EXCEED]} ({figures.refused_while_waiting})",
                    str(outcomes[Outcome.EXPIRED]),
                    f"{figures.forecast_error_p10_s:+.2f}, {figures.forecast_error_p90_s:+.2f}"
                    if policies.predicts
                    else "",
                ]
            )
    return table(f"Overload: Poisson arrivals for {overload.RUN_S:.0f} s, first 30 s dropped", columns, rows)


def _range(low: float, high: float) -> str:
    return f"{low:+.2f}, {high:+.2f}"


def _light_tenant() -> str:
    rows = []
    queues: tuple[tuple[str, sharing.MakeQueue | None], ...] = (
        ("alone", None),
        ("fair queue", FairQueue),
        ("fair queue, no burst credit", sharing.WITHOUT_BURSTS),
        ("first come, first served", sharing.FIFO),
    )
    alone = sharing.light_tenant(None)
    for name, queue in queues:
        figures = sharing.light_tenant(queue)
        bound = "" if queue is None else f"{alone.first_token_p99_s + figures.release_p99_s:.2f}"
        rows.append(
            [
                name,
                f"{figures.first_token_p50_s:.2f}",
                f"{figures.first_token_p99_s:.2f}",
                bound,
                f"{figures.refused} of {figures.requests}",
            ]
        )
    columns = ["light tenant", "TTFT p50 (s)", "p99 (s)", "bound: alone + release p99 (s)", "refused"]
    return table("A light tenant beside one at ten times its rate, who sends twice the capacity", columns, rows)


def _weights() -> str:
    rows = [
        ["fair queue, weights 1:3", f"{sharing.token_ratio(sharing.FAIR_BY_WEIGHT):.3f}"],
        ["first come, first served", f"{sharing.token_ratio(sharing.FIFO):.3f}"],
    ]
    return table(
        "Two tenants that send as much as the engine can do each, 300 s", ["queue", "tokens three / one"], rows
    )


def _ageing() -> str:
    rows = []
    for name, policies in (("ageing 5 s", priorities.AGEING), ("no ageing", priorities.NO_AGEING)):
        figures = priorities.ageing(policies)
        rows.append([name, f"{figures.standard_first_token_s:.2f}", f"{figures.interactive_first_token_p99_s:.2f}"])
    columns = ["policy", "standard request's first token after (s)", "interactive TTFT p99 (s)"]
    return table("One standard request under 30 s of interactive load at 110 % of capacity", columns, rows)


def _inversion() -> str:
    rows = []
    for holders in (Priority.STANDARD, Priority.BATCH):
        figures = priorities.inversion(holders)
        rows.append([holders.name.lower(), f"{figures.started_after_s:.2f}", f"{figures.second_release_s:.2f}"])
    columns = ["slots held by", "interactive request started after (s)", "second slot released after (s)"]
    return table("An interactive request that finds the engine full of 400-token outputs", columns, rows)


def _batch() -> str:
    rows = []
    variants: tuple[tuple[str, Callable[[], priorities.BatchFigures]], ...] = (
        ("no batch load", lambda: priorities.batch_beside_people(batch=False)),
        ("batch, one slot reserved", lambda: priorities.batch_beside_people(batch=True)),
        ("batch, four slots reserved", lambda: priorities.batch_beside_people(batch=True, reserved_slots=4)),
        ("batch, one slot, preempted", lambda: priorities.batch_beside_people(batch=True, preempts=True)),
    )
    for name, run in variants:
        figures = run()
        rows.append(
            [
                name,
                f"{figures.interactive_first_token_p50_s:.3f}",
                f"{figures.interactive_first_token_p99_s:.3f}",
                f"{figures.interactive_tokens_per_s:.0f}",
                f"{figures.batch_tokens_per_s:.0f}",
                f"{figures.recomputed_tokens_per_s:.0f}",
            ]
        )
    columns = [
        "load",
        "interactive TTFT p50 (s)",
        "p99 (s)",
        "interactive tokens/s",
        "batch tokens/s",
        "computed again",
    ]
    return table("Batch work beside interactive work at half the capacity", columns, rows)


if __name__ == "__main__":
    main()
