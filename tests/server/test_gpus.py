"""GPU memory, utilisation and power, where NVIDIA's management library tells them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from inferwire_server.observability.gpus import GpuGauges, GpuReader, GpuReading
from prometheus_client import CollectorRegistry


class _Nvml:
    """Two boards, of which the second does not tell its power."""

    def __init__(self) -> None:
        self.is_open = False

    def nvmlInit(self) -> None:  # noqa: N802
        self.is_open = True

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.is_open = False

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        return index

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:  # noqa: N802
        return SimpleNamespace(used=10 + handle, total=100)

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> Any:  # noqa: N802
        return SimpleNamespace(gpu=50)

    def nvmlDeviceGetPowerUsage(self, handle: int) -> int:  # noqa: N802
        if handle:
            raise RuntimeError("not supported")
        return 250_000


def test_each_gpu_says_what_it_knows() -> None:
    library = _Nvml()
    reader = GpuReader(lambda name: library)
    known = {"memory_total_bytes": 100.0, "utilization_ratio": 0.5}
    assert reader.read() == [
        GpuReading(gpu=0, memory_used_bytes=10.0, power_watts=250.0, **known),
        GpuReading(gpu=1, memory_used_bytes=11.0, power_watts=None, **known),
    ]
    reader.close()
    assert not library.is_open


def test_the_page_has_a_series_for_each_gpu_and_none_for_what_it_does_not_tell() -> None:
    reader, registry = GpuReader(lambda name: _Nvml()), CollectorRegistry()
    registry.register(GpuGauges(reader.read))

    assert registry.get_sample_value("inferwire_gpu_memory_used_bytes", {"gpu": "1"}) == 11
    assert registry.get_sample_value("inferwire_gpu_power_watts", {"gpu": "0"}) == 250
    assert registry.get_sample_value("inferwire_gpu_power_watts", {"gpu": "1"}) is None


def test_without_the_library_there_are_no_gpu_gauges() -> None:
    assert GpuReader().read() == []


def test_without_a_driver_there_are_no_gpu_gauges_and_it_is_asked_once() -> None:
    asked: list[str] = []

    def import_module(name: str) -> object:
        asked.append(name)
        raise RuntimeError("driver not loaded")

    reader = GpuReader(import_module)
    assert (reader.read(), reader.read(), asked) == ([], [], ["pynvml"])
