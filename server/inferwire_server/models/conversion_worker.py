"""The child process of a conversion: `python -m inferwire_server.models.conversion_worker SOURCE TARGET`."""

from __future__ import annotations

import importlib
import sys


def main(source: str, target: str) -> None:
    """Export a folder of safetensors weights as an F16 OpenVINO model."""
    exporters = importlib.import_module("optimum.exporters.openvino")
    configuration = importlib.import_module("optimum.intel.openvino")
    exporters.main_export(
        source,
        output=target,
        task="text-generation-with-past",
        trust_remote_code=False,
        local_files_only=True,
        convert_tokenizer=False,
        ov_config=configuration.OVConfig(dtype="fp16"),
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
