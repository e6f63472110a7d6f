"""Figures for `inferwire top` from scrapes of a metrics page: rates and quantiles between two of them. Pure."""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from prometheus_client.parser import text_string_to_metric_families

WINDOW_S = 10.0
"""Rates and quantiles are over so long."""

_OK = "ok"


@dataclass(frozen=True, slots=True)
class Scrape:
    """One reading of the page, summed over all labels but the named ones."""

    at: float
    """Seconds of a steady clock."""
    values: Mapping[str, float]
    outcomes: Mapping[str, float]
    """Generations by how they ended."""
    buckets: Mapping[str, Mapping[float, float]]
    """Cumulative counts of each histogram by upper bound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """None is unknown: nothing happened in the window, or the page has no such metric."""

    ok_per_second: float = 0.0
    other_per_second: Mapping[str, float] = field(default_factory=dict)
    """Outcomes but ok, those that happened, most frequent first."""
    output_tokens_per_second: float = 0.0
    cached_share: float | None = None
    """Of prompt tokens, 0 to 1."""
    first_token_s: tuple[float, float] | None = None
    """p50 and p99, as the next ones."""
    inter_token_s: tuple[float, float] | None = None
    queue_s: tuple[float, float] | None = None
    step_s: float | None = None
    silence_s: float | None = None


def read(page: str, at: float) -> Scrape:
    """Parse the text of a page. Raises ValueError."""
    values: dict[str, float] = defaultdict(float)
    outcomes: dict[str, float] = defaultdict(float)
    buckets: dict[str, dict[float, float]] = defaultdict(lambda: defaultdict(float))
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            if sample.name == "inferwire_generations_total":
                outcomes[sample.labels["outcome"]] += sample.value
            elif family.type == "histogram" and sample.name.endswith("_bucket"):
                buckets[family.name][float(sample.labels["le"])] += sample.value
            else:
                values[sample.name] += sample.value
    return Scrape(at, dict(values), dict(outcomes), {name: dict(each) for name, each in buckets.items()})


class History:
    """The scrapes of the last seconds."""

    def __init__(self) -> None:
        self._scrapes: deque[Scrape] = deque()

    def add(self, scrape: Scrape) -> None:
        """A page whose counters have fallen is a new process': what came before is forgotten."""
        if self._scrapes and _has_fallen(self._scrapes[-1].outcomes, scrape.outcomes):
            self._scrapes.clear()
        self._scrapes.append(scrape)
        while len(self._scrapes) > 2 and scrape.at - self._scrapes[1].at >= WINDOW_S:
            self._scrapes.popleft()

    def figures(self) -> Figures:
        """Between the oldest scrape and the latest; empty until there are two."""
        if len(self._scrapes) < 2 or self._scrapes[-1].at <= self._scrapes[0].at:
            return Figures()
        return between(self._scrapes[0], self._scrapes[-1])


def between(before: Scrape, after: Scrape) -> Figures:
    """What happened from one scrape to a later one."""
    seconds = after.at - before.at
    rates = {name: (count - before.outcomes.get(name, 0.0)) / seconds for name, count in after.outcomes.items()}
    others = sorted(((rate, name) for name, rate in rates.items() if name != _OK and rate > 0), reverse=True)
    prompt = _rise(before, after, "inferwire_prompt_tokens_total")
    cached = _rise(before, after, "inferwire_cached_tokens_total")
    return Figures(
        ok_per_second=rates.get(_OK, 0.0),
        other_per_second={name: rate for rate, name in others},
        output_tokens_per_second=(_rise(before, after, "inferwire_output_tokens_total") or 0.0) / seconds,
        cached_share=min(1.0, cached / prompt) if prompt and cached is not None else None,
        first_token_s=_middle_and_tail(before, after, "inferwire_time_to_first_token_seconds"),
        inter_token_s=_middle_and_tail(before, after, "inferwire_inter_token_seconds"),
        queue_s=_middle_and_tail(before, after, "inferwire_queue_seconds"),
        step_s=after.values.get("inferwire_step_seconds"),
        silence_s=after.values.get("inferwire_engine_silence_seconds"),
    )


def quantile(counts: Mapping[float, float], share: float) -> float | None:
    """As Prometheus' histogram_quantile: linear inside a bucket; the last finite bound where it lies above all.

    `counts` are cumulative by upper bound. None without observations.
    """
    bounds = sorted(counts)
    total = counts[bounds[-1]] if bounds else 0.0
    if total <= 0:
        return None
    rank, low, below = share * total, 0.0, 0.0
    for bound in bounds:
        if counts[bound] >= rank:
            if math.isinf(bound):
                return low
            return low + (bound - low) * (rank - below) / (counts[bound] - below)
        low, below = bound, counts[bound]
    return low


def _middle_and_tail(before: Scrape, after: Scrape, name: str) -> tuple[float, float] | None:
    earlier = before.buckets.get(name, {})
    counts = {bound: count - earlier.get(bound, 0.0) for bound, count in after.buckets.get(name, {}).items()}
    middle, tail = quantile(counts, 0.5), quantile(counts, 0.99)
    return None if middle is None or tail is None else (middle, tail)


def _rise(before: Scrape, after: Scrape, name: str) -> float | None:
    if name not in after.values:
        return None
    return after.values[name] - before.values.get(name, 0.0)


def _has_fallen(before: Mapping[str, float], after: Mapping[str, float]) -> bool:
    return any(after.get(name, 0.0) < count for name, count in before.items())
