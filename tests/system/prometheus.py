"""A real Prometheus with the rules that are shipped, watching what a test starts."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import urllib.parse
import urllib.request
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

SHIPPED = Path(__file__).resolve().parents[2] / "docker" / "prometheus"
HANG_BOUND_S = 60.0


class Target(NamedTuple):
    """A page on this machine."""

    job: str
    port: int
    labels: dict[str, str]


class Prometheus:
    """Answers queries."""

    def __init__(self, address: str) -> None:
        self._address = address

    async def query(self, text: str) -> list[dict[str, Any]]:
        """The series of an instant query. Raises HTTPError for one that is no PromQL."""
        return await asyncio.to_thread(self._query, text)

    def _query(self, text: str) -> list[dict[str, Any]]:
        url = f"http://{self._address}/api/v1/query?{urllib.parse.urlencode({'query': text})}"
        with urllib.request.urlopen(url, timeout=HANG_BOUND_S) as answer:
            found: list[dict[str, Any]] = json.load(answer)["data"]["result"]
            return found


@asynccontextmanager
async def prometheus(folder: Path, targets: Iterable[Target]) -> AsyncIterator[Prometheus]:
    """Scrapes the targets and evaluates the shipped rules every second; skips where it is not installed."""
    program = shutil.which("prometheus")
    if program is None:
        pytest.skip("Prometheus is not installed: it is Debian's package prometheus")
    process = await asyncio.create_subprocess_exec(
        program,
        f"--config.file={_written(folder, targets)}",
        f"--storage.tsdb.path={folder / 'data'}",
        "--web.listen-address=127.0.0.1:0",
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    said: list[str] = []
    listening: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    reading = asyncio.create_task(_follow(process, said, listening), name="log of Prometheus")
    try:
        async with asyncio.timeout(HANG_BOUND_S):
            address = await listening
        yield Prometheus(address)
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        await reading


async def _follow(process: asyncio.subprocess.Process, said: list[str], listening: asyncio.Future[str]) -> None:
    assert process.stderr is not None
    async for line in process.stderr:
        said.append(line.decode())
        found = re.search(r'"Listening on" address=(\S+)', said[-1])
        if found and not listening.done():
            listening.set_result(found[1])
    if not listening.done():
        listening.set_exception(AssertionError(f"Prometheus ended before it listened: {said}"))


def _written(folder: Path, targets: Iterable[Target]) -> Path:
    """The shipped configuration with other targets and a pace of a second."""
    settings = yaml.safe_load((SHIPPED / "prometheus.yml").read_text())
    settings["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    settings["rule_files"] = [str(SHIPPED / name) for name in settings["rule_files"]]
    settings["scrape_configs"] = [
        {
            "job_name": f"{target.job}-{number}",
            "static_configs": [{"targets": [f"127.0.0.1:{target.port}"], "labels": target.labels}],
            "relabel_configs": [{"target_label": "job", "replacement": target.job}],
        }
        for number, target in enumerate(targets)
    ]
    file = folder / "prometheus.yml"
    file.write_text(yaml.safe_dump(settings))
    return file
