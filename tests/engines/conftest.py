"""Counts the conformance cases of each engine."""

from __future__ import annotations

from collections import Counter, defaultdict

import pytest

for module in ("event_recorder", "engine_harness", "promises"):
    pytest.register_assert_rewrite(f"tests.engines.{module}")

_engine_of: dict[str, str] = {}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        engine_name = getattr(getattr(item, "cls", None), "engine_name", None)
        if engine_name is not None:
            _engine_of[item.nodeid] = engine_name


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for outcome in ("passed", "failed", "skipped"):
        for report in terminalreporter.getreports(outcome):
            if engine_name := _engine_of.get(getattr(report, "nodeid", "")):
                counts[engine_name][outcome] += 1
    for engine_name, outcomes in sorted(counts.items()):
        summary = ", ".join(f"{count} {outcome}" for outcome, count in outcomes.items())
        terminalreporter.write_line(f"engine conformance, {engine_name}: {summary}")
