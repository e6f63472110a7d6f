"""GPU memory, utilisation and power, where NVIDIA's management library tells them."""

from __future__ import annotations

from inferwire_server.observability.gpus import GpuGauges, GpuReader, GpuReading
from prometheus_client import CollectorRegistry

from tests.recorded_nvml import RecordedNvml


def test_each_gpu_says_what_it_knows() -> None:
    library = RecordedNvml()
    reader = GpuReader(lambda name: library)
    known = {"memory_total_bytes": 100.0, "utilization_ratio": 0.5}
    assert reader.read() == [
        GpuReading(gpu=0, memory_used_bytes=10.0, power_watts=250.0, **known),
        GpuReading(gpu=1, memory_used_bytes=11.0, power_watts=None, **known),
    ]
    reader.close()
    assert not library.is_open


def test_the_page_has_a_series_for_each_gpu_and_none_for_what_it_does_not_tell() -> None:
    reader, registry = GpuReader(lambda name: RecordedNvml()), CollectorRegistry()
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
