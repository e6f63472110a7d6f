"""A model that does not fit into memory is refused with the numbers, before any of it is loaded."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys

import pytest
from inferwire_server.models.version import ModelVersion

from tests.real_model import NAME, real_model_folder

HANG_BOUND_S = 60.0
EXABYTE_GIB = 1 << 30


async def refused(**engine_options: int) -> tuple[int | None, str]:
    """Exit status and error text of a server that was given these options."""
    environment = dict(os.environ) | {
        "INFERWIRE_MODELS_DIR": str(real_model_folder()),
        "INFERWIRE_PORT": "0",
        "INFERWIRE_METRICS_ENABLED": "false",
        "INFERWIRE_ENGINE_OPTIONS": json.dumps(engine_options),
        "INFERWIRE_LOG_LEVEL": "error",
    }
    command = [sys.executable, "-m", "inferwire_server", "serve", NAME, "--engine", "openvino"]
    process = await asyncio.create_subprocess_exec(
        *command, env=environment, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE
    )
    try:
        async with asyncio.timeout(HANG_BOUND_S):
            _, error = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return process.returncode, error.decode()


@pytest.mark.real_model
@pytest.mark.timeout(120)
async def test_a_cache_larger_than_the_memory_is_refused_with_the_numbers(smollm2_q8_0: ModelVersion) -> None:
    status, error = await refused(kv_gib=EXABYTE_GIB)
    assert status == 1
    assert re.search(r"needs about [\d,.]+ \w+: weights [\d,.]+ \w+, KV cache [\d,.]+ \w+ for \d+ blocks", error)
    assert re.search(r"[\d,.]+ \w+ are available", error)
    assert re.search(r"at most \d+ KV blocks", error), "it says what would fit"
    assert "Traceback" not in error
