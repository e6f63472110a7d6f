"""Counters and histograms for the serving loop: written by its one thread without a lock, read at each scrape.

A child of prometheus-client takes a lock for every number it changes, which costs more than all else a token causes.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Generic, TypeVar

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector


class CounterTally:
    """One rising number."""

    __slots__ = ("total",)

    def __init__(self) -> None:
        self.total = 0.0

    def inc(self, amount: float = 1.0) -> None:
        """Count."""
        self.total += amount


class HistogramTally:
    """Observations by bucket; `bounds` are inclusive upper ones, rising."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Put one observation into its bucket."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def buckets(self) -> list[tuple[str, float]]:
        """Bound and count of observations up to it, as they stand."""
        buckets: list[tuple[str, float]] = []
        reached = 0
        for bound, count in zip((*self.bounds, math.inf), self.counts.copy(), strict=True):
            reached += count
            buckets.append(("+Inf" if math.isinf(bound) else repr(bound), reached))
        return buckets


T = TypeVar("T", bound=CounterTally | HistogramTally)
Shared = Sequence[tuple[str, str]]
"""Labels and values that every child of a collector bears."""


class _Family(Generic[T]):
    """Tallies of one name that differ by labels. Whoever counts binds a child once and keeps it."""

    def __init__(self, name: str, text: str, labels: Sequence[str]) -> None:
        self._name = name
        self._text = text
        self._labels = tuple(labels)
        self._children: dict[tuple[str, ...], T] = {}

    def labels(self, *values: str) -> T:
        """The child of these values, one for each label, which must come from closed sets."""
        child = self._children.get(values)
        if child is None:
            if len(values) != len(self._labels):
                raise ValueError(f"{self._name} has the labels {self._labels}, not {values}")
            child = self._children[values] = self._make()
        return child

    def _make(self) -> T:
        raise NotImplementedError

    def _label_names(self, shared: Shared) -> list[str]:
        return [*(name for name, _ in shared), *self._labels]

    def _each(self, shared: Shared) -> Iterator[tuple[list[str], T]]:
        common = [value for _, value in shared]
        for own, child in self._children.copy().items():
            yield [*common, *own], child


class CounterFamily(_Family[CounterTally]):
    """Counters."""

    def metric(self, shared: Shared) -> Metric:
        """As they stand."""
        metric = CounterMetricFamily(self._name, self._text, labels=self._label_names(shared))
        for values, child in self._each(shared):
            metric.add_metric(values, child.total)
        return metric

    def _make(self) -> CounterTally:
        return CounterTally()


class HistogramFamily(_Family[HistogramTally]):
    """Histograms with the same bounds."""

    def __init__(self, name: str, text: str, labels: Sequence[str], bounds: Sequence[float]) -> None:
        super().__init__(name, text, labels)
        self._bounds = tuple(bounds)

    def metric(self, shared: Shared) -> Metric:
        """As they stand."""
        metric = HistogramMetricFamily(self._name, self._text, labels=self._label_names(shared))
        for values, child in self._each(shared):
            metric.add_metric(values, child.buckets(), child.sum)
        return metric

    def _make(self) -> HistogramTally:
        return HistogramTally(self._bounds)


class TallyCollector(Collector):
    """Makes tallies and shows them at each scrape, in the scraping thread."""

    def __init__(self, **shared: str) -> None:
        """`shared`: labels that all of them bear."""
        self._shared = list(shared.items())
        self._families: list[CounterFamily | HistogramFamily] = []

    def counter(self, name: str, text: str) -> CounterTally:
        """A new counter, named without the `_total` of its sample."""
        return self.counters(name, text, ()).labels()

    def counters(self, name: str, text: str, labels: Sequence[str]) -> CounterFamily:
        """New counters that differ by labels."""
        family = CounterFamily(name, text, labels)
        self._families.append(family)
        return family

    def histogram(self, name: str, text: str, bounds: Sequence[float]) -> HistogramTally:
        """A new histogram."""
        return self.histograms(name, text, (), bounds).labels()

    def histograms(self, name: str, text: str, labels: Sequence[str], bounds: Sequence[float]) -> HistogramFamily:
        """New histograms that differ by labels."""
        family = HistogramFamily(name, text, labels, bounds)
        self._families.append(family)
        return family

    def collect(self) -> Iterator[Metric]:
        """Every family as it stands."""
        for family in self._families:
            yield family.metric(self._shared)
