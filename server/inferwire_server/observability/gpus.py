"""GPU memory, utilisation and power from NVIDIA's management library, where it is installed."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields
from typing import Protocol

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector


class _Memory(Protocol):
    used: int
    total: int


class _Utilization(Protocol):
    gpu: int


class ManagementLibrary(Protocol):
    """The part of the module pynvml (distribution nvidia-ml-py) that is used."""

    def nvmlInit(self) -> None: ...  # noqa: N802

    def nvmlShutdown(self) -> None: ...  # noqa: N802

    def nvmlDeviceGetCount(self) -> int: ...  # noqa: N802

    def nvmlDeviceGetHandleByIndex(self, index: int) -> object: ...  # noqa: N802

    def nvmlDeviceGetMemoryInfo(self, handle: object) -> _Memory: ...  # noqa: N802

    def nvmlDeviceGetUtilizationRates(self, handle: object) -> _Utilization: ...  # noqa: N802

    def nvmlDeviceGetPowerUsage(self, handle: object) -> int: ...  # noqa: N802


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuReading:
    """One board; None is what it does not tell."""

    gpu: int
    """Index."""
    memory_used_bytes: float | None = None
    memory_total_bytes: float | None = None
    utilization_ratio: float | None = None
    """Share of the latest moments in which anything ran on it."""
    power_watts: float | None = None


class GpuReader:
    """Reads every visible GPU; without the library or a driver it reads nothing, for good."""

    def __init__(self, import_module: Callable[[str], object] = importlib.import_module) -> None:
        self._import_module = import_module
        self._library: ManagementLibrary | None = None
        self._is_absent = False

    def read(self) -> list[GpuReading]:
        """May take milliseconds."""
        library = self._open()
        if library is None:
            return []
        return [_read(library, index) for index in range(int(_answer(library.nvmlDeviceGetCount) or 0))]

    def close(self) -> None:
        """Let go of the driver."""
        if self._library is not None:
            _answer(self._library.nvmlShutdown)
            self._library = None

    def _open(self) -> ManagementLibrary | None:
        if self._library is None and not self._is_absent:
            try:
                library: ManagementLibrary = self._import_module("pynvml")  # type: ignore[assignment]
                library.nvmlInit()
            except Exception:  # noqa: BLE001 - its error class is its own, and any of them means no gauges
                self._is_absent = True
            else:
                self._library = library
        return self._library


class GpuSampler:
    """Reads on a thread of its own, for a driver may take its time."""

    def __init__(self, reader: GpuReader, *, interval_s: float = 5.0) -> None:
        self._reader = reader
        self._interval_s = interval_s
        self._stopped = threading.Event()
        self.latest: list[GpuReading] = []

    def start(self) -> None:
        """Begin to sample."""
        threading.Thread(target=self._sample, name="inferwire-gpu", daemon=True).start()

    def stop(self) -> None:
        """Sample no more."""
        self._stopped.set()

    def _sample(self) -> None:
        while True:
            self.latest = self._reader.read()
            if not self.latest or self._stopped.wait(self._interval_s):
                self._reader.close()
                return


class GpuGauges(Collector):
    """`inferwire_gpu_<fact>` with the index of the GPU."""

    def __init__(self, read: Callable[[], Iterable[GpuReading]]) -> None:
        self._read = read

    def collect(self) -> Iterator[Metric]:
        """Called at each scrape, in the scraping thread."""
        readings = list(self._read())
        for fact in (each.name for each in fields(GpuReading) if each.name != "gpu"):
            family = GaugeMetricFamily(f"inferwire_gpu_{fact}", "As NVIDIA's driver reports it.", labels=("gpu",))
            for reading in readings:
                value = getattr(reading, fact)
                if value is not None:
                    family.add_metric((str(reading.gpu),), value)
            yield family


def _read(library: ManagementLibrary, index: int) -> GpuReading:
    device = library.nvmlDeviceGetHandleByIndex(index)
    return GpuReading(
        gpu=index,
        memory_used_bytes=_answer(lambda: library.nvmlDeviceGetMemoryInfo(device).used),
        memory_total_bytes=_answer(lambda: library.nvmlDeviceGetMemoryInfo(device).total),
        utilization_ratio=_answer(lambda: library.nvmlDeviceGetUtilizationRates(device).gpu / 100),
        power_watts=_answer(lambda: library.nvmlDeviceGetPowerUsage(device) / 1000),
    )


def _answer(question: Callable[[], float | None]) -> float | None:
    try:
        value = question()
    except Exception:  # noqa: BLE001 - some boards do not answer some questions
        return None
    return None if value is None else float(value)
