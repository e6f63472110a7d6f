"""GPU memory, utilisation and power from NVIDIA's management library, where it is installed."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable
from typing import Protocol


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


class GpuReader:
    """Reads every visible GPU; without the library or a driver it reads nothing, for good."""

    def __init__(self, import_module: Callable[[str], object] = importlib.import_module) -> None:
        self._import_module = import_module
        self._library: ManagementLibrary | None = None
        self._is_absent = False

    def read(self) -> dict[str, float]:
        """Gauges by metric suffix, as in `gpu0_memory_used_bytes`; may take milliseconds. Unknown is absent."""
        library = self._open()
        if library is None:
            return {}
        gauges: dict[str, float] = {}
        for index in range(int(_answer(library.nvmlDeviceGetCount) or 0)):
            device = library.nvmlDeviceGetHandleByIndex(index)
            for suffix, question in (
                ("memory_used_bytes", lambda device=device: library.nvmlDeviceGetMemoryInfo(device).used),
                ("memory_total_bytes", lambda device=device: library.nvmlDeviceGetMemoryInfo(device).total),
                ("utilization_ratio", lambda device=device: library.nvmlDeviceGetUtilizationRates(device).gpu / 100),
                ("power_watts", lambda device=device: library.nvmlDeviceGetPowerUsage(device) / 1000),
            ):
                value = _answer(question)
                if value is not None:
                    gauges[f"gpu{index}_{suffix}"] = value
        return gauges

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
        self.latest: dict[str, float] = {}

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


def _answer(question: Callable[[], float | None]) -> float | None:
    try:
        value = question()
    except Exception:  # noqa: BLE001 - some boards do not answer some questions
        return None
    return None if value is None else float(value)
