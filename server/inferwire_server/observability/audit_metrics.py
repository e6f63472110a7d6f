"""Whether every call has left its audit record."""

from __future__ import annotations

from inferwire_server.observability.tallies import TallyCollector


class AuditMetrics:
    """Each method is called by one thread only, so no count needs a lock."""

    def __init__(self, tallies: TallyCollector) -> None:
        self._written = tallies.counter("inferwire_audit_records", "Audit records written.")
        dropped = tallies.counters("inferwire_audit_dropped", "Audit records that were lost.", ("reason",))
        self._overflowed = dropped.labels("too_many_waiting")
        self._failed = dropped.labels("write_failed")

    def written(self, count: int) -> None:
        self._written.inc(count)

    def overflowed(self) -> None:
        self._overflowed.inc()

    def failed(self, count: int) -> None:
        self._failed.inc(count)
