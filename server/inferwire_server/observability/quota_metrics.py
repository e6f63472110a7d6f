"""What tenants were refused by their quotas, and what is left of their budgets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from inferwire_server.observability.tallies import TallyCollector
from inferwire_server.observability.tenant_names import OTHER, TenantNames

Budgets = Callable[[], Iterable[tuple[str, int, int]]]
"""Tenant, tokens spent this month, and the most they may be."""


class QuotaMetrics:
    """Counts refusals; shows budgets once they are bound."""

    def __init__(self, tallies: TallyCollector, tenants: TenantNames) -> None:
        self._tenants = tenants
        self._refusals = tallies.counters(
            "inferwire_quota_refusals", "Requests over a quota of their tenant, by limit.", ("tenant", "limit")
        )
        self._warnings = tallies.counters(
            "inferwire_quota_warnings", "Monthly budgets that reached their warning threshold.", ("tenant",)
        )

    def refused(self, tenant: str, limit: str) -> None:
        """`limit` is the name of one of the limits there are."""
        self._refusals.labels(self._tenants.label(tenant), limit).inc()

    def warned(self, tenant: str) -> None:
        """Its budget is nearly spent."""
        self._warnings.labels(self._tenants.label(tenant)).inc()


class BudgetGauges(Collector):
    """Read at each scrape, in the scraping thread; listed tenants only, for budgets of others cannot be added up."""

    def __init__(self, tenants: TenantNames, read: Budgets) -> None:
        self._tenants = tenants
        self._read = read

    def collect(self) -> Iterator[Metric]:
        spent = GaugeMetricFamily(
            "inferwire_quota_monthly_tokens", "Tokens of this month, reserved ones included.", labels=("tenant",)
        )
        most = GaugeMetricFamily("inferwire_quota_monthly_tokens_limit", "The most they may be.", labels=("tenant",))
        for tenant, tokens, budget in self._read():
            label = self._tenants.label(tenant)
            if label != OTHER:
                spent.add_metric((label,), tokens)
                most.add_metric((label,), budget)
        yield spent
        yield most
