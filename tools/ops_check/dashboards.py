"""Grafana's dashboards are found, every panel asks something, and what it asks can be answered."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from tools.ops_check.queries import without_variables
from tools.ops_check.rules_files import faults, recorded

FOLDER = Path("docker/grafana")
_MOUNTED_AT = "/var/lib/grafana/dashboards"


class Query(NamedTuple):
    """One of a panel."""

    dashboard: str
    panel: str
    text: str


def queries(root: Path) -> Iterator[Query]:
    """Every query of every dashboard, as it is written there."""
    for path, dashboard in _dashboards(root):
        for panel in _panels(dashboard):
            yield from (Query(path.name, panel["title"], each["expr"]) for each in panel["targets"])


def problems(root: Path) -> list[str]:
    """One line for each."""
    records = recorded(root)
    found = [fault for path, dashboard in _dashboards(root) for fault in _shortcomings(path, dashboard)]
    for query in queries(root):
        found += [
            f"{query.dashboard}: {query.panel}: {fault}" for fault in faults(without_variables(query.text), records)
        ]
    uids = Counter(dashboard["uid"] for _, dashboard in _dashboards(root))
    found += [f"{uid} is the uid of {count} dashboards" for uid, count in uids.items() if count > 1]
    return found + list(_provisioning(root))


def _dashboards(root: Path) -> Iterator[tuple[Path, Any]]:
    for path in sorted((root / FOLDER / "dashboards").glob("*.json")):
        yield path, json.loads(path.read_text())


def _panels(dashboard: Any) -> list[Any]:
    return [panel for panel in dashboard["panels"] if panel["type"] != "row"]


def _shortcomings(path: Path, dashboard: Any) -> Iterator[str]:
    ids = Counter(panel["id"] for panel in dashboard["panels"])
    yield from (f"{path.name}: {count} panels have the id {each}" for each, count in ids.items() if count > 1)
    variables = {variable["name"] for variable in dashboard["templating"]["list"]}
    for panel in _panels(dashboard):
        if not panel.get("targets"):
            yield f"{path.name}: {panel['title']}: it asks nothing"
        if panel["datasource"]["uid"] != "${datasource}":
            yield f"{path.name}: {panel['title']}: it has a data source of its own"
        for name in ("region", "model", "tenant", "job"):
            if any(f"${name}" in target["expr"] for target in panel["targets"]) and name not in variables:
                yield f"{path.name}: {panel['title']}: the dashboard has no variable {name}"


def _provisioning(root: Path) -> Iterator[str]:
    folder = root / FOLDER / "provisioning"
    providers = yaml.safe_load((folder / "dashboards" / "inferwire.yml").read_text())["providers"]
    if _MOUNTED_AT not in [provider["options"]["path"] for provider in providers]:
        yield f"no provider reads {_MOUNTED_AT}, where compose mounts the dashboards"
    sources = yaml.safe_load((folder / "datasources" / "prometheus.yml").read_text())["datasources"]
    if [source["type"] for source in sources] != ["prometheus"]:
        yield "the one data source must be Prometheus"
