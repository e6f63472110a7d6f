"""Gates on the policies, in a seeded simulation with a virtual clock: overload."""

from bench.simulation.overload import AS_SHIPPED, NO_ESTIMATOR, UNBOUNDED_QUEUE, WORKLOAD, OverloadFigures, overload
from bench.simulation.server import Policies, SimulatedServer
from bench.simulation.workload import Outcome, poisson


def refused_share_while_waiting(figures: OverloadFigures) -> float:
    return figures.refused_while_waiting / figures.outcomes[Outcome.WOULD_EXCEED]


def test_at_twice_the_capacity_no_more_than_a_twentieth_of_it_is_lost() -> None:
    figures = overload(AS_SHIPPED)

    assert figures.requests >= 10_000
    assert figures.goodput_share >= 0.95


def test_hardly_anything_is_computed_for_requests_that_miss_their_target() -> None:
    assert overload(AS_SHIPPED).wasted_share <= 0.02


def test_refusals_come_at_once_and_not_after_a_wait() -> None:
    assert refused_share_while_waiting(overload(AS_SHIPPED)) <= 0.05


def test_forecasts_at_arrival_are_neither_rosy_nor_gloomy() -> None:
    figures = overload(AS_SHIPPED)

    assert -0.6 <= figures.forecast_error_p10_s <= 0.2
    assert -0.2 <= figures.forecast_error_p90_s <= 0.6


def test_without_the_estimator_both_figures_are_worse() -> None:
    shipped, without = overload(AS_SHIPPED), overload(NO_ESTIMATOR)

    assert without.goodput_share < 0.5 * shipped.goodput_share
    assert without.wasted_share > 0.5


def test_with_an_unbounded_queue_hardly_anybody_is_served_in_time() -> None:
    figures = overload(UNBOUNDED_QUEUE)

    assert figures.goodput_share < 0.05
    assert figures.outcomes[Outcome.EXPIRED] > figures.outcomes[Outcome.COMPLETED]


def test_below_the_capacity_nobody_is_refused() -> None:
    outcomes = overload(AS_SHIPPED, load=0.8).outcomes

    assert outcomes[Outcome.COMPLETED] == sum(outcomes.values())


def test_a_simulation_repeats_exactly() -> None:
    def run() -> list[tuple[Outcome | None, float | None]]:
        requests = poisson(WORKLOAD, rate=16.0, until_s=40.0, seed=9)
        server = SimulatedServer(Policies())
        server.offer(requests)
        server.run()
        return [(request.outcome, request.first_token_at) for request in requests]

    assert run() == run()
