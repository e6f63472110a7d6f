"""Which engine a process runs, and whether it is installed: decided before anything heavy is imported."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

from inferwire_server.settings import Settings, SettingsError


def engine_name(settings: Settings) -> str:
    """The engine that `auto` stands for here."""
    if settings.engine != "auto":
        return settings.engine
    has_gpu = shutil.which("nvidia-smi") is not None or Path("/dev/nvidiactl").exists()
    return "tensorrt-llm" if has_gpu and importlib.util.find_spec("tensorrt_llm") else "openvino"


def require_engine(settings: Settings) -> None:
    """Raise SettingsError or EngineDown, which say what to install, when the engine's package is not there."""
    name = engine_name(settings)
    if name == "tensorrt-llm":
        from inferwire_server.engines.tensorrt_llm.installation import require_installed

        require_installed()
    if name == "openvino" and importlib.util.find_spec("openvino_genai") is None:
        raise SettingsError("the CPU engine is not installed; install it with:  pip install 'inferwire[cpu]'")
