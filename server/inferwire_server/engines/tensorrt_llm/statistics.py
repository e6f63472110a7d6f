"""The engine's iteration statistics and cache events as gauges. What is absent or strange is unknown, no error."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping

from inferwire_server.domain.engine import StepTotals

_ITERATION = {
    "iterLatencyMS": ("iteration_seconds", 1e-3),
    "newActiveRequestsQueueLatencyMS": ("engine_queue_seconds", 1e-3),
    "numActiveRequests": ("active_requests", 1.0),
    "numQueuedRequests": ("queued_requests", 1.0),
    "maxNumActiveRequests": ("max_active_requests", 1.0),
    "gpuMemUsage": ("gpu_memory_bytes", 1.0),
    "cpuMemUsage": ("host_memory_bytes", 1.0),
    "pinnedMemUsage": ("pinned_memory_bytes", 1.0),
}
_NESTED = {
    "kvCacheStats": {
        "maxNumBlocks": ("kv_blocks", 1.0),
        "freeNumBlocks": ("kv_blocks_free", 1.0),
        "usedNumBlocks": ("kv_blocks_used", 1.0),
        "tokensPerBlock": ("kv_block_tokens", 1.0),
        "reusedBlocks": ("kv_blocks_reused", 1.0),
        "missedBlocks": ("kv_blocks_missed", 1.0),
        "cacheHitRate": ("kv_cache_hit_ratio", 1.0),
    },
    "inflightBatchingStats": {
        "numScheduledRequests": ("scheduled_requests", 1.0),
        "numContextRequests": ("context_requests", 1.0),
        "numGenRequests": ("generation_requests", 1.0),
        "numPausedRequests": ("paused_requests", 1.0),
        "numCtxTokens": ("context_tokens", 1.0),
        "avgNumDecodedTokensPerIter": ("decoded_tokens_per_iteration", 1.0),
    },
}
_EVENT_KINDS = frozenset({"created", "stored", "removed", "updated"})


class StatisticsReader:
    """Keeps the latest value of each gauge that was ever seen. One writer; a read copies."""

    def __init__(self) -> None:
        self.totals: StepTotals | None = None
        """Of the iterations that were read; None before the first one."""
        self._gauges: dict[str, float] = {}
        self._last_event_id: int | None = None

    def gauges(self) -> dict[str, float]:
        """By metric suffix; seconds, bytes, counts, ratios."""
        return dict(self._gauges)

    def value(self, gauge: str) -> float | None:
        """The latest value of one gauge; None when it is unknown."""
        return self._gauges.get(gauge)

    def read_iteration(self, raw: object) -> None:
        """One iteration, as an object or as JSON."""
        for item in _objects(raw):
            self._take(item, _ITERATION)
            for name, gauges in _NESTED.items():
                nested = item.get(name)
                if isinstance(nested, Mapping):
                    self._take(nested, gauges)
            if _known(item.get("iterLatencyMS")) is not None:
                seconds, sequences = self._gauges["iteration_seconds"], self._gauges.get("scheduled_requests", 0.0)
                self.totals = (self.totals or StepTotals()).plus(seconds, int(sequences))

    def read_events(self, raw: object) -> None:
        """One cache event or a list of them; counts each kind and the ids that were skipped."""
        for item in _objects(raw):
            data = item.get("data")
            kind = data.get("type") if isinstance(data, Mapping) else None
            if kind in _EVENT_KINDS:
                self._add(f"kv_events_{kind}", 1.0)
            event_id = item.get("event_id")
            if isinstance(event_id, int) and not isinstance(event_id, bool):
                if self._last_event_id is not None and event_id > self._last_event_id + 1:
                    self._add("kv_events_lost", float(event_id - self._last_event_id - 1))
                self._last_event_id = event_id

    def _take(self, source: Mapping[str, object], gauges: Mapping[str, tuple[str, float]]) -> None:
        for name, (gauge, scale) in gauges.items():
            value = _known(source.get(name))
            if value is not None:
                self._gauges[gauge] = value * scale

    def _add(self, gauge: str, amount: float) -> None:
        self._gauges[gauge] = self._gauges.get(gauge, 0.0) + amount


def _known(value: object) -> float | None:
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    return None


def _objects(raw: object) -> list[Mapping[str, object]]:
    if isinstance(raw, str | bytes):
        try:
            raw = json.loads(raw)
        except ValueError:
            return []
    items = raw if isinstance(raw, list) else [raw]
    return [item for item in items if isinstance(item, Mapping)]
