"""Every metric of the server is declared here or in the rooms that this one opens. What is counted is a tally."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import version

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from inferwire_server.observability.audit_metrics import AuditMetrics
from inferwire_server.observability.buckets import FIRST_TOKEN_BUCKETS
from inferwire_server.observability.call_metrics import CallMetrics
from inferwire_server.observability.generation_metrics import GenerationMetrics
from inferwire_server.observability.gpus import GpuGauges, GpuReading
from inferwire_server.observability.log_writer import STANDARD_ERROR
from inferwire_server.observability.quota_metrics import BudgetGauges, Budgets, QuotaMetrics
from inferwire_server.observability.security_metrics import SecurityMetrics
from inferwire_server.observability.server_gauges import ServerGauges, Snapshot, TrtllmGauges
from inferwire_server.observability.tallies import TallyCollector
from inferwire_server.observability.tenant_names import TenantNames


class Metrics:
    """Owns a registry of its own, and another for the alias page."""

    def __init__(
        self,
        model: str,
        *,
        codes: Iterable[str],
        reasons: Iterable[str],
        tenants: Iterable[str] = (),
        price_per_hour: float | None = None,
    ) -> None:
        """`codes` and `reasons` are all that calls can end with; `tenants` are shown by name, others as `other`."""
        self.registry = CollectorRegistry()
        self.security = SecurityMetrics(self.registry)
        self.alias_registry = CollectorRegistry()
        self._model = model
        self._tenants = TenantNames(tenants)
        of_model, of_calls = TallyCollector(model=model), TallyCollector()
        self.generations = GenerationMetrics(of_model, self._tenants)
        self.calls = CallMetrics(of_calls, codes, reasons)
        self.quotas = QuotaMetrics(of_calls, self._tenants)
        self.audit = AuditMetrics(of_calls)
        self._canary_seconds = of_model.histogram(
            "inferwire_canary_seconds", "One-token generations that probe the engine.", FIRST_TOKEN_BUCKETS
        )
        self._canary_failures = of_model.counter(
            "inferwire_canary_failures", "Probes of the engine that did not finish."
        )
        for collector in (of_model, of_calls, _Build(model), _LogLines()):
            self.registry.register(collector)
        ProcessCollector(registry=self.registry)
        if price_per_hour is not None:
            self.registry.register(_Price(model, price_per_hour, self._tokens))

    def bind_gauges(self, read: Callable[[], Snapshot]) -> None:
        """Read the gauges from `read` at each scrape, in the scraping thread."""
        self.registry.register(ServerGauges(self._model, self._tenants, read))
        self.alias_registry.register(TrtllmGauges(self._model, read))

    def bind_budgets(self, read: Budgets) -> None:
        """The same for tenants' budgets."""
        self.registry.register(BudgetGauges(self._tenants, read))

    def bind_gpus(self, read: Callable[[], Iterable[GpuReading]]) -> None:
        """The same for GPUs, where there are any."""
        self.registry.register(GpuGauges(read))

    def canary(self, is_whole: bool, seconds: float) -> None:
        """One probe of the engine."""
        self._canary_seconds.observe(seconds)
        if not is_whole:
            self._canary_failures.inc()

    def _tokens(self) -> float:
        return self.generations.prompt_tokens.total + self.generations.output_tokens.total


class _Build(Collector):
    def __init__(self, model: str) -> None:
        self._values = (model, version("inferwire"))

    def collect(self) -> Iterator[Metric]:
        family = GaugeMetricFamily("inferwire_build_info", "Always 1; what runs here.", labels=("model", "version"))
        family.add_metric(self._values, 1)
        yield family


class _LogLines(Collector):
    """Of the process, which has one log whatever it serves."""

    def collect(self) -> Iterator[Metric]:
        family = CounterMetricFamily(
            "inferwire_log_lines_dropped", "Log lines that standard error did not take.", labels=("reason",)
        )
        for reason, count in STANDARD_ERROR.dropped().items():
            family.add_metric((reason,), count)
        yield family


class _Price(Collector):
    """In the currency of the configured price."""

    def __init__(self, model: str, price_per_hour: float, tokens: Callable[[], float]) -> None:
        self._labels = (model,)
        self._price_per_hour = price_per_hour
        self._tokens = tokens
        self._began = time.monotonic()

    def collect(self) -> Iterator[Metric]:
        price = GaugeMetricFamily(
            "inferwire_price_per_hour", "What the server costs, as configured.", labels=("model",)
        )
        price.add_metric(self._labels, self._price_per_hour)
        yield price
        tokens = self._tokens()
        if tokens:
            spent = self._price_per_hour * (time.monotonic() - self._began) / 3600
            cost = GaugeMetricFamily(
                "inferwire_cost_per_million_tokens",
                "Of prompt and output tokens together, since the process started.",
                labels=("model",),
            )
            cost.add_metric(self._labels, spent / tokens * 1e6)
            yield cost
