"""The TypeScript example: installed from its lock, type-checked, and run on Node against a real server process."""

from __future__ import annotations

import asyncio
import hashlib
import json
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import grpc
import platformdirs
import pytest
from filelock import FileLock
from inferwire.v1 import generation_pb2, inference_pb2_grpc

from tests.server_process import server_process

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "clients" / "typescript"
OLDEST_NODE = 20
PACKAGES = platformdirs.user_cache_path("inferwire-tests") / "typescript"


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Sequence[str]:
    """The command that runs the example, built in a copy."""
    node = shutil.which("node")
    if node is None or shutil.which("npm") is None:
        pytest.skip("node and npm are not installed")
    version = _run(node, "--version").removeprefix("v")
    if int(version.partition(".")[0]) < OLDEST_NODE:
        pytest.skip(f"node is {version}; the example needs {OLDEST_NODE}")
    copy = tmp_path_factory.mktemp("checkout")
    shutil.copytree(ROOT / "proto", copy / "proto")
    (copy / "clients").mkdir()
    shutil.copy(ROOT / "clients" / "service_config.json", copy / "clients")
    folder = copy / "clients" / "typescript"
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("node_modules", "generated", "dist"))
    (folder / "node_modules").symlink_to(_installed(folder), target_is_directory=True)
    _run("npm", "run", "build", folder=folder)
    return (node, str(folder / "dist" / "src" / "stream.js"))


def _installed(folder: Path) -> Path:
    """The packages of the lock, fetched once for each."""
    lock = (folder / "package-lock.json").read_bytes()
    place = PACKAGES / hashlib.sha256(lock).hexdigest()[:16]
    place.mkdir(parents=True, exist_ok=True)
    with FileLock(place / "lock"):
        if not (place / "whole").exists():
            for name in ("package.json", "package-lock.json"):
                shutil.copy(folder / name, place)
            _run("npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", folder=place)
            (place / "whole").touch()
    return place / "node_modules"


def _run(*command: str, folder: Path | None = None) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}{done.stderr}"
    return done.stdout.strip()


async def run(program: Sequence[str], *arguments: str) -> tuple[int | None, str, str]:
    """Status, output, errors."""
    process = await asyncio.create_subprocess_exec(
        *program, *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    output, errors = await process.communicate()
    return process.returncode, output.decode(), errors.decode()


@pytest.mark.slow
@pytest.mark.system_package
@pytest.mark.timeout(300)
async def test_it_streams_what_a_python_stub_streams(program: Sequence[str]) -> None:
    request = generation_pb2.GenerateRequest(model="scripted", prompt="The sea is", max_output_tokens=40)
    request.sampling.seed = 7
    async with server_process() as server, grpc.aio.insecure_channel(server.address) as channel:
        expected = await inference_pb2_grpc.InferenceServiceStub(channel).Generate(request)
        status, output, errors = await run(program, server.address, "scripted", "The sea is")

    assert (status, output, errors) == (0, expected.outputs[0].text + "\n", "")


@pytest.mark.slow
@pytest.mark.system_package
@pytest.mark.timeout(300)
async def test_it_reads_the_reason_of_an_error(program: Sequence[str]) -> None:
    async with server_process() as server:
        status, output, errors = await run(program, server.address, "nobody", "The sea is")

    assert (status, output) == (1, "")
    assert errors.startswith("NOT_FOUND MODEL_NOT_FOUND, started: false:")


def test_its_lock_has_hashes_and_no_addresses() -> None:
    lock = json.loads((EXAMPLE / "package-lock.json").read_text())
    packages = {name: package for name, package in lock["packages"].items() if name}

    assert packages
    assert all(package["integrity"].startswith("sha512-") for package in packages.values())
    assert not [name for name, package in packages.items() if "resolved" in package]
