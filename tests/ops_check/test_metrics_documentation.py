"""docs/observing.md names every metric of the server, with its labels, and no other."""

from __future__ import annotations

import re
from pathlib import Path

from tools.ops_check.declared_metrics import declared, server_registry

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "observing.md").read_text()
ROWS = [line.split("|") for line in PAGE.splitlines() if line.startswith("| `")]
FAMILIES = {
    family.name + ("_total" if family.type == "counter" else ""): family
    for family in server_registry().collect()
    if not family.name.startswith("process_")
}


def named(text: str) -> list[str]:
    return [name for name in re.findall(r"`([^`]+)`", text) if "…" not in name]


def test_every_metric_is_in_the_table_and_no_other() -> None:
    assert sorted(name for row in ROWS for name in named(row[1])) == sorted(FAMILIES)


def test_the_table_has_their_labels() -> None:
    for row in ROWS:
        for name in named(row[1]):
            labels = {label for sample in FAMILIES[name].samples for label in sample.labels} - {"le"}
            wanted = set(named(row[2])) | (
                {"grpc_type", "grpc_service", "grpc_method"} if "the same" in row[2] else set()
            )
            assert labels <= wanted, name


def test_every_alert_s_page_is_in_the_index() -> None:
    folder = Path(__file__).resolve().parents[2] / "docs" / "incidents"
    index = (folder / "README.md").read_text()
    for page in folder.glob("*.md"):
        if page.name != "README.md":
            title, _, alerts = page.read_text().splitlines()[:3]
            assert f"[{title.removeprefix('# ')}]({page.name})" in index
            assert alerts.removeprefix("Alerts: ").removesuffix(".") in index


def test_incident_pages_name_only_metrics_that_exist() -> None:
    known = declared().labels
    pages = (Path(__file__).resolve().parents[2] / "docs" / "incidents").glob("*.md")
    named = {name for page in pages for name in re.findall(r"\b(?:inferwire|grpc_server)_\w+", page.read_text())}
    assert named - known.keys() == set()
    assert len(named) >= 2
