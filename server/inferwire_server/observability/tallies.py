"""Counters and histograms for the serving loop: written by its one thread without a lock, read at each scrape.

A child of prometheus-client takes a lock for every number it changes, which costs more than all else a token causes.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector


class CounterTally:
    """One rising number."""

    __slots__ = ("_name", "_text", "total")

    def __init__(self, name: str, text: str) -> None:
        self._name = name
        self._text = text
        self.total = 0.0

    def inc(self, amount: float = 1.0) -> None:
        """Count."""
        self.total += amount

    def family(self, label: str, value: str) -> Metric:
        """As it stands."""
        family = CounterMetricFamily(self._name, self._text, labels=[label])
        family.add_metric([value], self.total)
        return family


class HistogramTally:
    """Observations by bucket; `bounds` are inclusive upper ones, rising."""

    __slots__ = ("_bounds", "_counts", "_name", "_sum", "_text")

    def __init__(self, name: str, text: str, bounds: Sequence[float]) -> None:
        self._name = name
        self._text = text
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """Put one observation into its bucket."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def family(self, label: str, value: str) -> Metric:
        """As it stands."""
        family = HistogramMetricFamily(self._name, self._text, labels=[label])
        buckets: list[tuple[str, float]] = []
        reached = 0
        for bound, count in zip((*self._bounds, math.inf), self._counts.copy(), strict=True):
            reached += count
            buckets.append(("+Inf" if math.isinf(bound) else repr(bound), reached))
        family.add_metric([value], buckets, self._sum)
        return family


class TallyCollector(Collector):
    """Shows tallies that all bear the same label."""

    def __init__(self, label: str, value: str) -> None:
        self._label = label
        self._value = value
        self._tallies: list[CounterTally | HistogramTally] = []

    def counter(self, name: str, text: str) -> CounterTally:
        """A new counter, without the `_total` of its sample."""
        tally = CounterTally(name, text)
        self._tallies.append(tally)
        return tally

    def histogram(self, name: str, text: str, bounds: Sequence[float]) -> HistogramTally:
        """A new histogram."""
        tally = HistogramTally(name, text, bounds)
        self._tallies.append(tally)
        return tally

    def collect(self) -> Iterator[Metric]:
        """Called at each scrape, in the scraping thread."""
        for tally in self._tallies:
            yield tally.family(self._label, self._value)
