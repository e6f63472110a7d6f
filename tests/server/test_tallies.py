"""Tallies are shown as any Prometheus metric is."""

from __future__ import annotations

import pytest
from inferwire_server.observability.tallies import TallyCollector
from prometheus_client import CollectorRegistry, generate_latest


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def tallies(registry: CollectorRegistry) -> TallyCollector:
    collector = TallyCollector(model="m@1")
    registry.register(collector)
    return collector


def test_a_counter_shows_its_total(registry: CollectorRegistry, tallies: TallyCollector) -> None:
    counter = tallies.counter("inferwire_things", "Things.")
    counter.inc()
    counter.inc(2.5)

    assert registry.get_sample_value("inferwire_things_total", {"model": "m@1"}) == 3.5


def test_a_histogram_s_buckets_add_up_and_their_bounds_are_inclusive(
    registry: CollectorRegistry, tallies: TallyCollector
) -> None:
    histogram = tallies.histogram("inferwire_seconds", "Seconds.", (0.1, 1.0))
    for value in (0.05, 0.1, 0.5, 7.0):
        histogram.observe(value)

    def bucket(bound: str) -> float | None:
        return registry.get_sample_value("inferwire_seconds_bucket", {"model": "m@1", "le": bound})

    assert [bucket("0.1"), bucket("1.0"), bucket("+Inf")] == [2, 3, 4]
    assert registry.get_sample_value("inferwire_seconds_count", {"model": "m@1"}) == 4
    assert registry.get_sample_value("inferwire_seconds_sum", {"model": "m@1"}) == pytest.approx(7.65)


def test_what_nothing_was_counted_in_is_shown_as_zero(registry: CollectorRegistry, tallies: TallyCollector) -> None:
    tallies.counter("inferwire_things", "Things.")
    tallies.histogram("inferwire_seconds", "Seconds.", (1.0,))

    page = generate_latest(registry).decode()

    assert 'inferwire_things_total{model="m@1"} 0.0' in page
    assert 'inferwire_seconds_count{model="m@1"} 0.0' in page
