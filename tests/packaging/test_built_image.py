"""The CPU image, really built and run, without Docker: by buildah, on a base that mmdebstrap makes.

It takes some minutes and is asked for by name, where buildah and mmdebstrap are installed and the user is root:

    INFERWIRE_TEST_IMAGE=yes python -m pytest tests/packaging/test_built_image.py

INFERWIRE_TEST_IMAGE_OPTIONS has more options for the build, as `--volume /etc/pip.conf:/etc/pip.conf:ro` where the way
to the package index needs them. A read-only root file system cannot be enforced here: buildah's chroot has none.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import grpc
import platformdirs
import pytest
from inferwire import Client, InferwireError
from inferwire.v1 import operations_pb2, operations_pb2_grpc

from tests.real_model import NAME, real_model_folder

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(not os.environ.get("INFERWIRE_TEST_IMAGE"), reason="asked for by INFERWIRE_TEST_IMAGE=yes"),
]

ROOT = Path(__file__).resolve().parents[2]
BASE = platformdirs.user_cache_path("inferwire-tests") / "bookworm-python.tar"
PACKAGES = "python3-venv,python-is-python3,ca-certificates"


class Buildah:
    """buildah with a store of its own."""

    def __init__(self, folder: Path) -> None:
        self._command = ["buildah", "--root", str(folder / "store"), "--runroot", str(folder / "run")]
        self._environment = os.environ | {"STORAGE_DRIVER": "vfs", "BUILDAH_ISOLATION": "chroot"}

    def __call__(self, *arguments: str | Path, check: bool = True) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [*self._command, *arguments], env=self._environment, cwd=ROOT, capture_output=True, text=True, check=False
        )
        assert not check or done.returncode == 0, f"{arguments}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
        return done

    def start(self, *arguments: str | Path) -> subprocess.Popen[bytes]:
        return subprocess.Popen([*self._command, *arguments], env=self._environment, cwd=ROOT, stderr=subprocess.PIPE)


@pytest.fixture(scope="module")
def buildah(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Buildah]:
    for program in ("buildah", "mmdebstrap"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")
    folder = tmp_path_factory.mktemp("buildah")
    tool = Buildah(folder)
    yield tool
    tool("rm", "--all")
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def image(buildah: Buildah) -> str:
    if not BASE.exists():
        BASE.parent.mkdir(parents=True, exist_ok=True)
        sources = list(Path("/etc/apt/sources.list.d").glob("debian.sources"))
        new = BASE.with_suffix(".new.tar")
        command = ["mmdebstrap", "--variant=minbase", f"--include={PACKAGES}", "bookworm", str(new), *map(str, sources)]
        subprocess.run(command, check=True, capture_output=True)
        new.rename(BASE)
    scratch = buildah("from", "scratch").stdout.strip()
    buildah("add", scratch, BASE, "/")
    buildah("commit", "--rm", scratch, "localhost/python")
    options = shlex.split(os.environ.get("INFERWIRE_TEST_IMAGE_OPTIONS", ""))
    build = ["bud", "--format", "docker", "--pull-never", "--build-arg", "PYTHON_IMAGE=localhost/python", *options]
    buildah(*build, "--file", "docker/Dockerfile", "--tag", "localhost/inferwire:cpu", ".")
    return "localhost/inferwire:cpu"


@pytest.fixture
def container(buildah: Buildah, image: str) -> str:
    return buildah("from", "--pull-never", image).stdout.strip()


@contextmanager
def serving(buildah: Buildah, container: str) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """The image's own server over the real model, mounted read-only, once it is ready; its port and its process."""
    settings = {"PORT": 0, "METRICS_PORT": 0, "MODEL": NAME, "DRAIN_SETTLE": 0, "LOG_FORMAT": "json"}
    settings["MODELS_DIR"] = "/weights"  # over a volume that the image declares, buildah mounts nothing
    variables = [option for name, value in settings.items() for option in ("--env", f"INFERWIRE_{name}={value}")]
    volumes = ["--volume", f"{real_model_folder()}:/weights:ro"]
    process = buildah.start("run", *variables, *volumes, container, "--", "inferwire", "serve", "--insecure")
    try:
        assert process.stderr is not None
        log = [json.loads(line) for line in _until_ready(process.stderr) if line.startswith(b"{")]
        address = next(line["address"] for line in log if line["event"] == "listening")
        yield str(address).rpartition(":")[2], process
    finally:
        process.kill()
        process.communicate()


def _until_ready(log: IO[bytes]) -> Iterator[bytes]:
    said = []
    for line in log:
        said.append(line)
        yield line
        if b'"event": "ready"' in line:
            return
    raise AssertionError(f"the server has ended: {said}")


def test_a_release_is_refused_without_a_digest_of_its_base(buildah: Buildah, image: str) -> None:
    arguments = ["--build-arg", "PYTHON_IMAGE=localhost/python", "--build-arg", "RELEASE=yes"]

    done = buildah("bud", "--pull-never", *arguments, "--file", "docker/Dockerfile", ".", check=False)

    assert done.returncode != 0
    assert "no digest: localhost/python" in done.stdout + done.stderr


def test_it_runs_as_nobody_and_cannot_change_itself(buildah: Buildah, container: str) -> None:
    assert buildah("run", container, "--", "id", "-u").stdout.strip() == "10001"
    for path in ("/opt/inferwire/new", "/etc/new", "/usr/bin/new"):
        assert "Permission denied" in buildah("run", container, "--", "touch", path, check=False).stderr
    assert buildah("run", container, "--", "touch", "/models/new").returncode == 0


def test_it_says_how_it_is_to_be_run(buildah: Buildah, image: str) -> None:
    config: dict[str, Any] = json.loads(buildah("inspect", "--type", "image", image).stdout)["Docker"]["config"]

    assert config["User"] == "10001:10001"
    assert config["StopSignal"] == "SIGTERM"
    assert config["Healthcheck"]["Test"] == ["CMD", "python", "/opt/inferwire/healthcheck.py"]
    assert config["Entrypoint"] == ["inferwire"]


def test_it_lists_what_it_holds(buildah: Buildah, container: str) -> None:
    listed = json.loads(buildah("run", container, "--", "cat", "/opt/inferwire/sbom.cdx.json").stdout)

    versions = {part["name"].lower().replace("_", "-"): part["version"] for part in listed["components"]}
    locked = dict(
        line.split(" ")[0].split("==")
        for line in (ROOT / "requirements" / "base.txt").read_text().splitlines()
        if "==" in line
    )
    assert listed["bomFormat"] == "CycloneDX"
    assert {"inferwire", "openvino-genai", "uvloop"} <= set(versions)
    assert {name: versions.get(name) for name in locked} == locked


def test_it_opens_no_door_unless_told_so(buildah: Buildah, container: str) -> None:
    done = buildah("run", container, "--", "inferwire", "serve", "--engine", "scripted", check=False)

    assert done.returncode != 0
    assert "--insecure" in done.stderr


@pytest.mark.real_model
def test_it_serves_the_real_model_from_a_read_only_volume_and_drains(
    buildah: Buildah, container: str, smollm2_q8_0: object
) -> None:
    with serving(buildah, container) as (port, process), Client(f"127.0.0.1:{port}") as client:
        check = ["run", "--env", f"INFERWIRE_PORT={port}", container, "--", "python", "/opt/inferwire/healthcheck.py"]
        assert "SERVING" in buildah(*check).stderr
        assert client.generate("The sea is", max_output_tokens=8, temperature=0, timeout_s=60).text

        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            operations_pb2_grpc.OperationsServiceStub(channel).Drain(operations_pb2.DrainRequest(), timeout=20)
        assert process.wait(timeout=60) == 0
        with pytest.raises(InferwireError):
            client.status(timeout_s=5)
