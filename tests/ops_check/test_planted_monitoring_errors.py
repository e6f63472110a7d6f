"""The checks of rules, alerts and dashboards notice what is wrong: each error below is planted and named."""

from __future__ import annotations

import importlib
import json
import shutil
from pathlib import Path
from typing import NamedTuple

import pytest

from tools.ops_check.queries import without_comparisons, without_variables

ROOT = Path(__file__).resolve().parents[2]
RULES, ALERTS = "docker/prometheus/rules.yml", "docker/prometheus/alerts.yml"
TESTS, SERVICE = "docker/prometheus/rules_test.yml", "docker/grafana/dashboards/service.json"
PROVIDER = "docker/grafana/provisioning/dashboards/inferwire.yml"


class Planted(NamedTuple):
    """In `file`, `old` becomes `new`; then `check` says `says`."""

    check: str
    says: str
    file: str
    old: str
    new: str


ERRORS = [
    Planted("rule_queries", "is not PromQL", ALERTS, "inferwire_draining == 1", "inferwire_draining =="),
    Planted(
        "rule_queries", "there is no series inferwire_drainings", ALERTS, "inferwire_draining ", "inferwire_drainings "
    ),
    Planted(
        "rule_queries",
        "there is no series region:inferwire_errors:ratio_rate2h",
        ALERTS,
        "errors:ratio_rate1h",
        "errors:ratio_rate2h",
    ),
    Planted("rule_queries", "has no bucket that ends at 2.6", RULES, 'le="2.5"', 'le="2.6"'),
    Planted("rule_queries", "has no label prio", RULES, "priority=~", "prio=~"),
    Planted(
        "rule_queries",
        "page docs/incidents/nothing.md does not exist",
        ALERTS,
        "incidents/kv-pressure.md",
        "incidents/nothing.md",
    ),
    Planted(
        "rule_queries",
        "page docs/incidents/kv-pressure.md does not name it",
        ALERTS,
        "alert: InferwireKvPressure",
        "alert: InferwireKvFull",
    ),
    Planted(
        "rule_queries",
        "InferwireEngineStuck fires in no test",
        TESTS,
        'alertname="InferwireEngineStuck"',
        'alertname="Other"',
    ),
    Planted(
        "rule_queries",
        "no test proves that a healthy server has no alert",
        TESTS,
        "exp_samples: []",
        "exp_samples: [{labels: x, value: 1}]",
    ),
    Planted("rule_queries", "its severity is none of", ALERTS, "severity: page", "severity: loud"),
    Planted("rule_queries", "it has no summary", ALERTS, "summary:", "title:"),
    Planted("dashboards", "is not PromQL", SERVICE, "sum by (outcome)", "sum by outcome)"),
    Planted(
        "dashboards",
        "there is no series inferwire_refused_total",
        SERVICE,
        "inferwire_refusals_total",
        "inferwire_refused_total",
    ),
    Planted(
        "dashboards", "has no label code", SERVICE, "sum by (grpc_method, grpc_code)", "sum by (grpc_method, code)"
    ),
    Planted("dashboards", "panels have the id 3", SERVICE, '"id": 4,', '"id": 3,'),
    Planted("dashboards", "has a data source of its own", SERVICE, "${datasource}", "prometheus"),
    Planted("dashboards", "has no variable region", SERVICE, '"name": "region"', '"name": "zone"'),
    Planted(
        "dashboards", "is the uid of 2 dashboards", SERVICE, '"uid": "inferwire-service"', '"uid": "inferwire-engine"'
    ),
    Planted("dashboards", "no provider reads", PROVIDER, "/var/lib/grafana/dashboards", "/dashboards"),
]


def copied(folder: Path) -> Path:
    """What the checks read."""
    for name in ("docker/prometheus", "docker/grafana", "docs/incidents"):
        shutil.copytree(ROOT / name, folder / name)
    return folder


def said(check: str, root: Path) -> str:
    lines: list[str] = importlib.import_module(f"tools.ops_check.{check}").problems(root)
    return "".join(f"{line}\n" for line in lines)


def require_promtool() -> None:
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not installed: it is part of Debian's package prometheus")


def plant(root: Path, file: str, old: str, new: str) -> None:
    path = root / file
    text = path.read_text()
    assert old in text, f"{file} has no {old!r}"
    path.write_text(text.replace(old, new))


@pytest.mark.parametrize("check", ["rule_queries", "dashboards"])
def test_a_check_finds_nothing_where_nothing_is_wrong(check: str) -> None:
    assert said(check, ROOT) == ""


@pytest.mark.parametrize("error", ERRORS, ids=[each.says for each in ERRORS])
def test_a_planted_error_is_found(error: Planted, tmp_path: Path) -> None:
    root = copied(tmp_path)
    plant(root, error.file, error.old, error.new)

    assert error.says in said(error.check, root)


def test_a_panel_that_asks_nothing_is_found(tmp_path: Path) -> None:
    root = copied(tmp_path)
    dashboard = json.loads((root / SERVICE).read_text())
    dashboard["panels"][1]["targets"] = []
    (root / SERVICE).write_text(json.dumps(dashboard))

    assert "it asks nothing" in said("dashboards", root)


@pytest.mark.system_package
@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "old", "new", "says"),
    [
        ("docker/prometheus/prometheus.yml", "scrape_interval", "scrape_interwal", "scrape_interwal"),
        (ALERTS, "for: 2m", "for: a while", "not a valid duration"),
        (ALERTS, "{{ $labels.region }}", "{{ $labels.region }", "template"),
        (ALERTS, "inferwire_draining == 1", "inferwire_draining == 2", "FAILED"),
    ],
    ids=["an unknown setting", "a bad duration", "a bad template", "a rule whose test fails"],
)
def test_what_promtool_refuses_is_found(tmp_path: Path, file: str, old: str, new: str, says: str) -> None:
    require_promtool()
    root = copied(tmp_path)
    plant(root, file, old, new)

    assert says in said("prometheus", root)


@pytest.mark.system_package
@pytest.mark.slow
def test_every_alert_fires_in_its_test_and_none_on_a_healthy_server() -> None:
    require_promtool()

    assert said("prometheus", ROOT) == ""


@pytest.mark.parametrize(
    ("condition", "sides"),
    [
        ("a > 1", ["a"]),
        ("a > 2 * clamp_min(b, 1)", ["a", "2 * clamp_min(b, 1)"]),
        ("a > 1 and (b < 2 or c)", ["a", "b", "c"]),
        ("sum by (x) (a) / sum by (x) (b) > 0.9", ["sum by (x) (a) / sum by (x) (b)"]),
    ],
)
def test_a_condition_is_taken_apart_into_what_it_compares(condition: str, sides: list[str]) -> None:
    assert without_comparisons(condition) == sides


def test_variables_stand_for_everything() -> None:
    query = 'sum by (x) (rate(a{region=~"$region", m=~"${model}"}[$__rate_interval]))'

    assert without_variables(query) == 'sum by (x) (rate(a{region=~".*", m=~".*"}[5m]))'
