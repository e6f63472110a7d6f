"""Whatever selects pods selects the ones that serve."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tools.ops_check.pods import Pods, servers
from tools.ops_check.rendering import Manifest, Rendered, rendered

_APART = ("topology.kubernetes.io/zone", "kubernetes.io/hostname")


def problems(root: Path) -> list[str]:
    """Selectors that miss the servers, ports that they do not have, servers that may all lie on one machine."""
    return [line for each in rendered(root) for line in _of(each)]


def _of(rendered: Rendered) -> Iterator[str]:
    serving = list(servers(rendered))
    for required in ("Service", "PodDisruptionBudget"):
        if not rendered.of_kind(required):
            yield f"{rendered.name}: no {required}"
    for each in rendered.objects:
        where = f"{rendered.name}: {each['kind']} {each['metadata']['name']}"
        selector = _selector(each)
        if selector is None:
            continue
        missed = [pods.where for pods, _ in serving if not selector.items() <= pods.labels.items()]
        if missed or not selector:
            yield f"{where}: {selector} selects no servers"
        for pods, server in serving:
            names = {port["name"]: port["containerPort"] for port in server["ports"]}
            for port in _ports(each):
                if port not in names and port not in names.values():
                    yield f"{where}: {pods.where} has no port {port}"
    for each in rendered.of_kind("Service"):
        if each["spec"].get("clusterIP") != "None":
            yield f"{rendered.name}: Service {each['metadata']['name']}: not headless, so a client meets one pod only"
    for each in rendered.of_kind("Deployment"):
        if each["spec"]["selector"]["matchLabels"].items() - each["spec"]["template"]["metadata"]["labels"].items():
            yield f"{rendered.name}: Deployment {each['metadata']['name']}: its selector misses its own pods"
    yield from (line for pods, _ in serving if "Deployment" in pods.where for line in _spread(pods))


def _selector(each: Manifest) -> dict[str, str] | None:
    spec = each.get("spec", {})
    if each["kind"] == "Service":
        selector: dict[str, str] = spec.get("selector", {})
        return selector
    if each["kind"] in ("PodDisruptionBudget", "PodMonitor", "InferencePool"):
        labels: dict[str, str] = spec["selector"]["matchLabels"]
        return labels
    return None


def _ports(each: Manifest) -> list[str | int]:
    """The ports of a pod that an object sends something to."""
    spec = each["spec"]
    if each["kind"] == "Service":
        return [port.get("targetPort", port["port"]) for port in spec["ports"]]
    if each["kind"] == "PodMonitor":
        return [endpoint["port"] for endpoint in spec["podMetricsEndpoints"]]
    if each["kind"] == "InferencePool":
        return [port["number"] for port in spec["targetPorts"]]
    return []


def _spread(pods: Pods) -> Iterator[str]:
    constraints = {each["topologyKey"]: each for each in pods.spec.get("topologySpreadConstraints", ())}
    for key in _APART:
        if key not in constraints:
            yield f"{pods.where}: nothing spreads the pods over {key}"
        elif constraints[key]["labelSelector"]["matchLabels"].items() - pods.labels.items():
            yield f"{pods.where}: the spread over {key} counts other pods"
