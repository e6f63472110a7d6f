"""`make chaos`: the whole fault matrix in its large forms, as build/chaos.json and a table in docs/reliability.md."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.chaos.rows import ROWS, Row

REPORT = Path("build/chaos.json")
PAGE = Path(__file__).parents[2] / "docs" / "reliability.md"
BEGIN, END = "<!-- table: made by `make chaos` -->", "<!-- end of table -->"
_COLUMNS = (
    "row",
    "fault",
    "tests",
    "calls",
    "lost",
    "doubled",
    "attempts a call",
    "gap p50 / p99 / max, ms",
    "more",
    "asked",
)
_COUNTED = ("row", "form", "seed", "n", "lost", "doubled", "different", "attempts", "moved", "gap_ms", "wrong")


class Recorder:
    """Notes how tests end, and the figures that they give."""

    def __init__(self) -> None:
        self.tests: dict[str, dict[str, Any]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Called by pytest for each phase of each test."""
        test = self.tests.setdefault(report.nodeid, {"outcome": "passed", "seconds": 0.0, "figures": []})
        test["seconds"] = round(test["seconds"] + report.duration, 2)
        if report.outcome != "passed":
            test["outcome"] = report.outcome
        if report.when == "call":
            test["figures"] = [value for name, value in report.user_properties if name == "figures"]


def report_of(tests: dict[str, dict[str, Any]], rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Each row with its tests."""
    return [
        {
            "row": row.number,
            "fault": row.fault,
            "asked": row.goal,
            "tests": {
                name: test
                for name, test in tests.items()
                if any(name.startswith(f"tests/{place}") for place in row.tests)
            },
        }
        for row in rows
    ]


def table(report: Sequence[dict[str, Any]]) -> str:
    """For the page."""
    lines = ["| " + " | ".join(_COLUMNS) + " |", "|" + " --- |" * len(_COLUMNS)]
    lines += ["| " + " | ".join(_cells(row)) + " |" for row in report]
    return "\n".join(lines)


def with_table(page: str, text: str) -> str:
    """The page with a fresh table."""
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}\n\n{text}\n\n{END}{rest.partition(END)[2]}"


def _cells(row: dict[str, Any]) -> list[str]:
    outcomes = [test["outcome"] for test in row["tests"].values()]
    counts = [f"{outcomes.count(name)} {name}" for name in ("passed", "failed", "skipped") if name in outcomes]
    figures = [each for test in row["tests"].values() for each in test["figures"]]
    counted = [each for each in figures if "lost" in each]
    gaps = [each["gap_ms"] for each in counted if each.get("gap_ms")]
    worst = max(gaps, key=lambda gap: gap["p99"], default=None)
    attempts = [each["attempts"] for each in figures if "attempts" in each]
    return [
        row["row"],
        row["fault"],
        ", ".join(counts) or "not run",
        str(sum(each["n"] for each in counted)) if counted else "",
        str(sum(each["lost"] for each in counted)) if counted else "",
        str(sum(each.get("doubled", 0) + each.get("different", 0) for each in counted)) if counted else "",
        f"{min(attempts):.2f} to {max(attempts):.2f}" if attempts else "",
        f"{worst['p50']:.0f} / {worst['p99']:.0f} / {worst['max']:.0f}" if worst else "",
        "; ".join(dict.fromkeys(filter(None, map(_further, figures)))),
        row["asked"],
    ]


def _further(figures: dict[str, Any]) -> str:
    """What a test measured beside what every test counts."""
    pairs = [(name.replace("_", " "), value) for name, value in figures.items() if name not in _COUNTED]
    return ", ".join(f"{name} {_shown(value)}" for name, value in pairs)


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return " ".join(f"{name} {each}" for name, each in value.items())
    return " to ".join(map(str, value)) if isinstance(value, list) else str(value)


def main() -> int:
    """Run, report, and write the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0, help="of the soak")
    parser.add_argument("--row", action="append", choices=[row.number for row in ROWS], help="may be repeated")
    arguments = parser.parse_args()
    rows = [row for row in ROWS if not arguments.row or row.number in arguments.row]
    os.environ |= {"CHAOS": "full", "CHAOS_MINUTES": str(arguments.minutes)}
    recorder = Recorder()
    began = time.monotonic()
    places = dict.fromkeys(f"tests/{place}" for row in rows for place in row.tests)
    status = pytest.main([*places, "-q", "-m", "not gpu", "--timeout=4000"], plugins=[recorder])
    report = report_of(recorder.tests, rows)
    machine = f"{platform.machine()}, {psutil.cpu_count()} cores, {time.monotonic() - began:.0f} s"
    REPORT.parent.mkdir(exist_ok=True)
    REPORT.write_text(json.dumps({"machine": machine, "rows": report}, indent=1), encoding="utf-8")
    if len(rows) == len(ROWS):
        PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8"), table(report)), encoding="utf-8")
    sys.stdout.write(f"{table(report)}\n\n{machine}. Written to {REPORT}\n")
    return int(status)


if __name__ == "__main__":
    raise SystemExit(main())
