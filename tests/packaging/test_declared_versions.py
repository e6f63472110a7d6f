"""The client works at the lowest and at the newest versions that it declares."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

LOWEST = ("grpcio==1.76.0", "protobuf==6.31.1", "googleapis-common-protos==1.70.0", "pybreaker==1.4.0")
NEWEST = ("grpcio<2", "protobuf<8", "googleapis-common-protos<2", "pybreaker<2")

CONVERSATION = """
import asyncio

from inferwire import AsyncClient
from inferwire.testing import Script, fake_server


async def main() -> None:
    script = Script(tokens=("Short", " and", " sweet."))
    async with fake_server(script) as server, AsyncClient(server.address) as client:
        reply = await client.generate("a prompt")
        assert reply.text == "Short and sweet.", reply
        async with client.stream("a prompt") as stream:
            assert "".join([chunk.text async for chunk in stream]) == "Short and sweet."


asyncio.run(main())
print("spoken")
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("versions", [LOWEST, NEWEST], ids=["lowest", "newest"])
def test_client_speaks_with_a_server_at_declared_versions(
    versions: tuple[str, ...], wheel: Path, tmp_path: Path
) -> None:
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    python = str(tmp_path / "venv" / "bin" / "python")
    install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--upgrade"]
    subprocess.run([*install, str(wheel), *versions], check=True, timeout=240)
    done = subprocess.run(
        [python, "-W", "error", "-c", CONVERSATION], check=False, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert "spoken" in done.stdout
