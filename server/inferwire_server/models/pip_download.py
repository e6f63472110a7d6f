"""Downloading one wheel by pip, which knows the user's index, proxy, certificates and logins.

pip is run as a program of its own; what it prints is read for progress and, when it fails, for the reason.
"""

from __future__ import annotations

import collections
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from inferwire_server.models.errors import (
    AccessDenied,
    DownloaderMissing,
    DownloadFailed,
    ModelError,
    NetworkUnreachable,
    PackageNotFound,
    SourceCorrupt,
    StorageFull,
)
from inferwire_server.models.progress import Progress, ProgressSink, Stage

_PROGRESS = re.compile(r"Progress (\d+) of (\d+)")
_REMEMBERED_LINES = 200


@dataclass(frozen=True, slots=True)
class PinnedWheel:
    """A wheel that is known to the byte."""

    package: str
    version: str
    sha256: str

    @property
    def requirement(self) -> str:
        return f"{self.package}=={self.version}"


def download_wheel(wheel: PinnedWheel, folder: Path, environment: Mapping[str, str], progress: ProgressSink) -> Path:
    """Fetch a wheel into an empty folder and return its path.

    Raises SourceCorrupt, PackageNotFound, AccessDenied, NetworkUnreachable, StorageFull, DownloaderMissing or, for
    any other reason, DownloadFailed.
    """
    requirements = folder / "requirements.txt"
    requirements.write_text(f"{wheel.requirement} --hash=sha256:{wheel.sha256}\n", encoding="ascii")
    target = folder / "wheel"
    log = folder / "pip.log"
    options = ("--no-deps", "--only-binary=:all:", "--require-hashes", "--no-input", "--progress-bar", "raw")
    files = ("--log", str(log), "-r", str(requirements), "-d", str(target))
    command = [sys.executable, "-m", "pip", "download", *options, *files]
    output = _run(command, _pip_environment(environment, folder), wheel, progress)
    found = sorted(target.glob("*.whl")) if target.is_dir() else []
    if output.exit_status != 0 or len(found) != 1:
        raise explain(output.text + _unfetched_pages(log), wheel)
    return found[0]


@dataclass(frozen=True, slots=True)
class _Output:
    exit_status: int
    text: str


def _run(command: list[str], environment: dict[str, str], wheel: PinnedWheel, progress: ProgressSink) -> _Output:
    lines: collections.deque[str] = collections.deque(maxlen=_REMEMBERED_LINES)
    with subprocess.Popen(  # noqa: S603 - our own interpreter with fixed arguments
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        encoding="utf-8",
        errors="replace",
    ) as process:
        try:
            assert process.stdout is not None  # noqa: S101 - PIPE was asked for
            progress(Progress(Stage.DOWNLOADING, wheel.requirement))
            for line in process.stdout:
                if match := _PROGRESS.search(line):
                    done, total = int(match[1]), int(match[2])
                    progress(Progress(Stage.DOWNLOADING, wheel.requirement, done, total or None))
                else:
                    lines.append(line)
        except BaseException:
            process.kill()
            raise
    return _Output(process.returncode, "".join(lines))


def _unfetched_pages(log: Path) -> str:
    """Why index pages could not be read: pip tells only its log, and goes on as if they were empty."""
    if not log.is_file():
        return ""
    with log.open(encoding="utf-8", errors="replace") as lines:
        return "".join(line for line in lines if "Could not fetch URL" in line)


def _pip_environment(environment: Mapping[str, str], scratch: Path) -> dict[str, str]:
    settings = {
        **environment,
        "TMPDIR": str(scratch),  # pip assembles the file there: on the disk that was checked, and swept with it
        "NO_COLOR": "1",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_REQUIRE_VIRTUALENV": "0",  # nothing is installed
    }
    uv_index = environment.get("UV_DEFAULT_INDEX")
    if uv_index and "PIP_INDEX_URL" not in environment and not _has_configured_index(settings):
        settings["PIP_INDEX_URL"] = re.sub(r"^[A-Za-z0-9._-]+=", "", uv_index)
    return settings


def _has_configured_index(environment: dict[str, str]) -> bool:
    command = [sys.executable, "-m", "pip", "config", "get", "global.index-url"]
    return subprocess.run(command, env=environment, capture_output=True, check=False).returncode == 0  # noqa: S603


_LOCAL_FILE = "If you have the wheel already, run `inferwire pull ./FILE.whl`."


def explain(output: str, wheel: PinnedWheel) -> ModelError:
    """Name the cause in pip's output; the most specific one wins."""
    what = wheel.requirement

    def says(*patterns: str) -> bool:
        return any(re.search(pattern, output) for pattern in patterns)

    if says("No module named pip"):
        advice = "Run `python -m ensurepip`, or install inferwire with its extra `cpu`."
        return DownloaderMissing("pip is not installed beside inferwire, and is needed to download", advice)
    if says("DO NOT MATCH THE HASHES"):
        advice = f"Ask whoever runs your package mirror; do not use the file. {_LOCAL_FILE}"
        return SourceCorrupt(f"the index served a {what} with another sha256 than {wheel.sha256[:16]}…", advice)
    if says("No space left on device", r"\[Errno 28\]", "Disk quota exceeded"):
        advice = "Free some space, or choose a model folder on another disk."
        return StorageFull(f"the disk is full; {what} could not be saved", advice)
    if says(r"\b40[13] (Client )?Error", r"HTTP error 40[13]", "Unauthorized", "Forbidden for url"):
        advice = f"Check the login for your package index (pip's index-url, or a netrc entry). {_LOCAL_FILE}"
        return AccessDenied(f"the package index refused access to {what}", advice)
    if says("CERTIFICATE_VERIFY_FAILED", "SSLError", "SSLCertVerificationError", "confirming the ssl certificate"):
        advice = f"Point PIP_CERT to your organisation's certificate file. {_LOCAL_FILE}"
        return NetworkUnreachable("the package index has a certificate that is not trusted here", advice)
    if says("ProxyError", "proxy connection error", "Tunnel connection failed", "407 Proxy"):
        return NetworkUnreachable("the proxy refused the connection", f"Check HTTPS_PROXY. {_LOCAL_FILE}")
    if says("connection error:", "NewConnectionError", "NameResolution", "ConnectTimeout", "ReadTimeout", "timed out"):
        advice = f"Check the network and your pip index settings, then pull again. {_LOCAL_FILE}"
        return NetworkUnreachable(f"the package index cannot be reached for {what}", advice)
    if says("Connection (aborted|broken)", "IncompleteRead", "ProtocolError", "Download failed"):
        return NetworkUnreachable(f"the connection broke while {what} was downloaded", f"Pull again. {_LOCAL_FILE}")
    if says("No matching distribution found", "Could not find a version"):
        advice = f"Your index may be a mirror without this package, or may want a login. {_LOCAL_FILE}"
        return PackageNotFound(f"the package index does not offer {what}", advice)
    errors = [line.strip() for line in output.splitlines() if line.strip()]
    last = next((line for line in reversed(errors) if line.startswith("ERROR")), errors[-1] if errors else "no output")
    return DownloadFailed(f"pip could not download {what}: {last}", f"Run pip by hand to see more. {_LOCAL_FILE}")
