"""Converting transformers weights to OpenVINO, in a process of its own.

torch and optimum-intel come with the extra `convert` only. They are never imported here: the child process does it, so
that their memory is gone when the conversion is.
"""

from __future__ import annotations

import collections
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

from inferwire_server.models.errors import ConversionFailed, ConverterMissing, StorageFull
from inferwire_server.models.progress import Progress, ProgressSink, Stage

_WORKER = "inferwire_server.models.conversion_worker"
_NEEDED = ("torch", "optimum", "transformers")
_OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
_REMEMBERED_LINES = 60


def require_converter() -> None:
    """Raise ConverterMissing unless the packages of the extra `convert` are there."""
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise ConverterMissing(
            f"converting weights needs {' and '.join(missing)}, which inferwire does not install by itself",
            "Install it with `pip install 'inferwire[cpu,convert]'` and pull again, or pull a GGUF or OpenVINO model.",
        )


def convert_folder(source: Path, scratch: Path, progress: ProgressSink) -> Path:
    """Convert a folder of safetensors weights to F16 OpenVINO; return the folder with the result.

    Code that comes with a model is never run. Raises ConverterMissing, ConversionFailed and StorageFull.
    """
    require_converter()
    target = scratch / "openvino"
    progress(Progress(Stage.CONVERTING, source.name))
    lines: collections.deque[str] = collections.deque(maxlen=_REMEMBERED_LINES)
    command = [sys.executable, "-m", _WORKER, str(source), str(target)]
    with subprocess.Popen(  # noqa: S603 - our own interpreter and module
        command,
        env={**os.environ, **_OFFLINE, "TMPDIR": str(scratch)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        encoding="utf-8",
        errors="replace",
    ) as process:
        try:
            assert process.stdout is not None  # noqa: S101 - PIPE was asked for
            for line in process.stdout:
                lines.append(line)
                progress(Progress(Stage.CONVERTING, source.name))
        except BaseException:
            process.kill()
            raise
    if process.returncode != 0:
        raise _explain(source.name, process.returncode, "".join(lines))
    return target


def _explain(name: str, status: int, output: str) -> ConversionFailed | StorageFull:
    if "No space left on device" in output:
        return StorageFull(
            f"the disk is full; {name} could not be converted",
            "Free some space, or choose a model folder on another disk.",
        )
    if "torchvision::nms" in output:
        return ConversionFailed(
            f"{name} could not be converted: torchvision does not match the installed torch",
            "Run `pip uninstall torchvision`; text models do not need it.",
        )
    if status < 0:
        return ConversionFailed(
            f"{name} could not be converted: the converter was stopped by signal {-status}",
            "Often the memory was too small; convert on a larger machine and pull the OpenVINO folder.",
        )
    last = next((line.strip() for line in reversed(output.splitlines()) if line.strip()), "no output")
    return ConversionFailed(
        f"{name} could not be converted: {last}",
        "Check that optimum-intel supports the model and that it needs no code of its own.",
    )
