"""The check for the first hour on a GPU, rehearsed on the stand-in."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.engines.tensorrt_llm.toy_checkpoint import MODEL, STANDIN, unkind_checkpoint

_ROOT = Path(__file__).parents[3]


def gpu_check(
    model: Path, report: Path, *flags: str, package: Path | None = STANDIN
) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(package or "")}
    command = [sys.executable, "-m", "tools.gpu_check", "--model", str(model), "--report", str(report), *flags]
    return subprocess.run(command, cwd=_ROOT, env=environment, capture_output=True, text=True, timeout=55, check=False)


def read(report: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(report.read_text())
    return content


def test_it_observes_and_writes_one_report(tmp_path: Path) -> None:
    done = gpu_check(MODEL, tmp_path / "report.json", "--skip-suite")
    report = read(tmp_path / "report.json")
    assert done.returncode == 0, done.stderr
    assert report["ok"]
    assert report["names"]["differences"] == []
    assert report["observations"]["cached_prefix_is_counted_and_salted"]["cached_tokens"] == [0, 224, 0]


@pytest.mark.parametrize(("fault", "status"), [("worker_dies_at_step", 1), ("fatal_at_step", 70)])
def test_a_death_in_the_middle_is_reported_and_ends_it(fault: str, status: int, tmp_path: Path) -> None:
    """The second fault would also hang the interpreter's own exit."""
    model = unkind_checkpoint(tmp_path / "model", **{fault: 200}).folder
    done = gpu_check(model, tmp_path / "report.json", "--skip-suite")
    report = read(tmp_path / "report.json")
    assert done.returncode == status
    assert not report["ok"]
    assert report["observations"]["first_token_and_rate"]["ok"]
    assert "EngineDown" in report["observations"]["a_full_batch"]["error"]


def test_without_the_package_it_says_what_to_do(tmp_path: Path) -> None:
    done = gpu_check(MODEL, tmp_path / "report.json", package=None)
    assert done.returncode == 2
    assert "the package tensorrt-llm is not installed" in done.stderr


@pytest.mark.slow
def test_the_suite_marked_gpu_runs_from_it(tmp_path: Path) -> None:
    done = gpu_check(MODEL, tmp_path / "report.json")
    assert done.returncode == 0, (tmp_path / "report.json").read_text()
    assert any("engine conformance" in line for line in read(tmp_path / "report.json")["suite"]["summary"])
