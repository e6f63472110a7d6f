"""What only one kind of engine reports, as gauges that exist while the engine knows them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector


class EngineGauges(Collector):
    """`inferwire_engine_<name>` for each of the engine's own gauges, read at each scrape in the scraping thread."""

    def __init__(self, model: str, read: Callable[[], Mapping[str, float]]) -> None:
        self._model = model
        self._read = read

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """One family a gauge; what is unknown is absent."""
        for name, value in sorted(self._read().items()):
            family = GaugeMetricFamily(f"inferwire_engine_{name}", "Reported by the engine.", labels=("model",))
            family.add_metric((self._model,), value)
            yield family
