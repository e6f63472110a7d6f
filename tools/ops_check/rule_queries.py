"""Rules and alerts name what exists; every alert has an incident page that names it and a test in which it fires."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import yaml

from tools.ops_check.rules_files import ALERTS, FOLDER, RULES, TESTS, Rule, faults, recorded, rules

_SEVERITIES = ("page", "ticket")


def problems(root: Path) -> list[str]:
    """One line for each."""
    records = recorded(root)
    found = [
        f"{file}: {rule.name}: {fault}"
        for file in (RULES, ALERTS)
        for rule in rules(root, file)
        for fault in faults(rule.query, records)
    ]
    fired, is_silence_proved = _tested(root)
    for alert in rules(root, ALERTS):
        found += [f"{ALERTS}: {alert.name}: {fault}" for fault in _shortcomings(root, alert)]
        if alert.name not in fired:
            found.append(f"{TESTS}: {alert.name} fires in no test")
    if not is_silence_proved:
        found.append(f"{TESTS}: no test proves that a healthy server has no alert")
    return found


def _shortcomings(root: Path, alert: Rule) -> Iterator[str]:
    if alert.text.get("labels", {}).get("severity") not in _SEVERITIES:
        yield f"its severity is none of {', '.join(_SEVERITIES)}"
    notes = alert.text.get("annotations", {})
    yield from (f"it has no {name}" for name in ("summary", "description", "incident") if not notes.get(name))
    page = root / notes.get("incident", "")
    if not page.is_file():
        yield f"its incident page {notes.get('incident')} does not exist"
    elif f"`{alert.name}`" not in page.read_text():
        yield f"its incident page {notes['incident']} does not name it"


def _tested(root: Path) -> tuple[set[str], bool]:
    """Alerts that some test expects to fire, and whether some test expects none."""
    tests = yaml.safe_load((root / FOLDER / TESTS).read_text())["tests"]
    expected = [each for test in tests for each in test.get("promql_expr_test", ()) if "ALERTS" in each["expr"]]
    labels = [sample["labels"] for each in expected for sample in each["exp_samples"]]
    fired = {name for text in labels for name in re.findall(r'alertname="(\w+)"', text)}
    return fired, any(not each["exp_samples"] for each in expected)
