"""The README's Python, run as written against the real model; only the address is another one."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from inferwire_server.models.repository import ModelRepository

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
PYTHON = re.findall(r"^```python\n(.*?)^```", README, flags=re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def address(smollm2_repository: ModelRepository) -> Iterator[str]:
    """Of a server with the README's model."""
    command = [sys.executable, "-m", "inferwire_server", "serve", "--port", "0", "--no-metrics", "--log-format", "json"]
    environment = os.environ | {"INFERWIRE_MODELS_DIR": str(smollm2_repository.root), "INFERWIRE_DRAIN_SETTLE": "0"}
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        found = ""
        for line in process.stderr:
            listening = re.search(r'"address": "([^"]+)"', line)
            found = listening[1] if listening else found
            if '"ready"' in line:
                break
        assert found, "the server ended before it was ready"
        try:
            yield found
        finally:
            process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=30)
            process.kill()


@pytest.mark.real_model
@pytest.mark.timeout(180)
@pytest.mark.parametrize("number", range(len(PYTHON)))
def test_the_python_of_the_readme_runs_as_pasted(number: int, address: str) -> None:
    code = PYTHON[number].replace("127.0.0.1:50051", address)
    command = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout) > 20
