"""The image's recipe, and the health check that it runs."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2_grpc
from inferwire_server.rpc.health import Health

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILE = ROOT / "docker" / "Dockerfile"


@pytest.fixture
async def served() -> AsyncIterator[tuple[Health, int]]:
    """Health behind a real port."""
    health, server = Health(["inferwire.v1.InferenceService"]), grpc.aio.server()
    health_pb2_grpc.add_HealthServicer_to_server(health, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield health, port
    await server.stop(None)


async def healthcheck(port: int, *arguments: str, health_port: int | None = None) -> tuple[int, str]:
    environment = os.environ | {"INFERWIRE_PORT": str(port)}
    if health_port is not None:
        environment["INFERWIRE_HEALTH_PORT"] = str(health_port)
    script = ROOT / "docker" / "healthcheck.py"
    process = await asyncio.create_subprocess_exec(
        sys.executable, script, *arguments, env=environment, stderr=asyncio.subprocess.PIPE
    )
    _, said = await process.communicate()
    assert process.returncode is not None
    return process.returncode, said.decode()


async def test_healthcheck_passes_when_the_server_is_ready(served: tuple[Health, int]) -> None:
    health, port = served
    health.ready(True)

    assert (await healthcheck(port))[0] == 0


async def test_healthcheck_fails_while_the_model_is_loading(served: tuple[Health, int]) -> None:
    status, said = await healthcheck(served[1])

    assert status == 1
    assert "NOT_SERVING" in said


async def test_healthcheck_asks_for_the_service_it_is_given(served: tuple[Health, int]) -> None:
    assert (await healthcheck(served[1], "liveness"))[0] == 0


async def test_healthcheck_asks_at_the_health_port_where_there_is_one(served: tuple[Health, int]) -> None:
    assert (await healthcheck(1, "liveness", health_port=served[1]))[0] == 0


async def test_healthcheck_says_that_nobody_listens() -> None:
    status, said = await healthcheck(1)

    assert status == 1
    assert "UNAVAILABLE" in said


@pytest.mark.parametrize("recipe", sorted(DOCKERFILE.parent.glob("Dockerfile*")), ids=lambda recipe: recipe.name)
def test_hadolint_finds_nothing(recipe: Path) -> None:
    hadolint = Path(sys.executable).parent / "hadolint"

    done = subprocess.run([hadolint, recipe], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout) == (0, "")


def test_every_copied_path_exists_and_reaches_the_build() -> None:
    copies = re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE.read_text(), re.MULTILINE)
    sources = {source for line in copies for source in line.split()}
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}

    assert [source for source in sources if not (ROOT / source).exists()] == []
    assert [s for s in sources if not any(s == each or s.startswith(f"{each}/") for each in allowed)] == []
