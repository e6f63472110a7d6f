"""The files of docker/prometheus, and what they name that does not exist."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from tools.ops_check.declared_metrics import OF_PROMETHEUS, declared
from tools.ops_check.queries import labels_named, parsed, selectors

FOLDER = Path("docker/prometheus")
RULES, ALERTS, TESTS = "rules.yml", "alerts.yml", "rules_test.yml"
_OF_TARGETS = frozenset({"instance", "job", "region", "__name__"})


class Rule(NamedTuple):
    """A recording rule or an alert."""

    name: str
    query: str
    text: dict[str, Any]


def rules(root: Path, file: str) -> list[Rule]:
    """In order."""
    groups = yaml.safe_load((root / FOLDER / file).read_text())["groups"]
    found = [rule for group in groups for rule in group["rules"]]
    return [Rule(rule.get("record") or rule["alert"], rule["expr"], rule) for rule in found]


def recorded(root: Path) -> frozenset[str]:
    """Series that recording rules make."""
    return frozenset(rule.name for rule in rules(root, RULES))


def faults(query: str, records: Collection[str]) -> Iterator[str]:
    """Why a query cannot answer: it is no PromQL, or it names a series, a label or a bucket that there is not."""
    try:
        tree = parsed(query)
    except ValueError as error:
        yield f"is not PromQL: {error}"
        return
    known = declared()
    for name, equal in selectors(tree):
        if name in known.edges and "le" in equal and equal["le"] not in known.edges[name]:
            yield f"{name} has no bucket that ends at {equal['le']}"
        if name not in known.labels and name not in records and name not in OF_PROMETHEUS:
            yield f"there is no series {name}"
    for name, label in labels_named(tree):
        if name in known.labels and label not in known.labels[name] | _OF_TARGETS:
            yield f"{name} has no label {label}"
