"""NVIDIA's management library as the module pynvml (nvidia-ml-py 13) offers it, as far as it is used."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any


class RecordedNvml:
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
