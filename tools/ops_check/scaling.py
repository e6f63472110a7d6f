"""What scales the replicas asks for metrics that the server has."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import promql_parser

from tools.ops_check.declared_metrics import declared
from tools.ops_check.rendering import Manifest, rendered

_WORK = {"inferwire_waiting_generations", "inferwire_running_generations"}


def problems(root: Path) -> list[str]:
    """Queries that do not parse, name unknown metrics, or do not count the work; targets that do not exist."""
    return [
        f"{each.name}: ScaledObject {scaler['metadata']['name']}: {line}"
        for each in rendered(root)
        for scaler in each.of_kind("ScaledObject")
        for line in [*_target(scaler, each.objects), *_queries(scaler)]
    ]


def _target(scaler: Manifest, objects: list[Manifest]) -> Iterator[str]:
    target = scaler["spec"]["scaleTargetRef"]
    found = [each for each in objects if (each["kind"], each["metadata"]["name"]) == (target["kind"], target["name"])]
    if not found:
        yield f"there is no {target['kind']} {target['name']}"
    elif "replicas" in found[0]["spec"]:
        yield "the Deployment sets replicas too, and each apply would undo the scaling"


def _queries(scaler: Manifest) -> Iterator[str]:
    for trigger in scaler["spec"]["triggers"]:
        try:
            expression = promql_parser.parse(trigger["metadata"]["query"])
        except ValueError as error:
            yield f"{error}"
            continue
        named = _metrics(expression)
        if unknown := named - declared().labels.keys():
            yield f"the server has no {', '.join(sorted(unknown))}"
        if missing := _WORK - named:
            yield f"its query leaves out {', '.join(sorted(missing))}"


def _metrics(expression: promql_parser.Expr) -> set[str]:
    names: set[str] = set()

    def visit(node: promql_parser.Expr) -> bool:
        if isinstance(node, promql_parser.VectorSelector):
            names.add(node.name or "")
        return True

    promql_parser.walk(expression, visit)
    return names
