"""Nothing reaches a pod, and no pod reaches anything, but by a policy; what scrapes and calls is let in."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tools.ops_check.pods import Pods, pods_of, servers
from tools.ops_check.rendering import Manifest, Rendered, rendered


def problems(root: Path) -> list[str]:
    """Pods without a policy in either direction, open doors, and doors that are shut by mistake."""
    return [line for each in rendered(root) for line in _of(each)]


def _of(rendered: Rendered) -> Iterator[str]:
    policies = rendered.of_kind("NetworkPolicy")
    for pods in pods_of(rendered):
        held = {kind for policy in policies if _applies(policy, pods) for kind in policy["spec"]["policyTypes"]}
        for direction in ("Ingress", "Egress"):
            if direction not in held:
                yield f"{pods.where}: no NetworkPolicy holds its {direction}"
    for policy in policies:
        for rule in policy["spec"].get("ingress", ()):
            if not rule.get("from"):
                yield f"{rendered.name}: NetworkPolicy {policy['metadata']['name']}: lets in everybody"
    for pods, _ in servers(rendered):
        entrances = {port for policy in policies if _applies(policy, pods) for port in _entrances(policy)}
        is_scraped = rendered.of_kind("PodMonitor") or rendered.of_kind("InferencePool")
        wanted = {"grpc"} | ({"metrics"} if is_scraped else set())
        for port in sorted(wanted - entrances):
            yield f"{pods.where}: no NetworkPolicy lets anybody in at {port}"


def _applies(policy: Manifest, pods: Pods) -> bool:
    selector: dict[str, str] = policy["spec"]["podSelector"].get("matchLabels", {})
    return selector.items() <= pods.labels.items()


def _entrances(policy: Manifest) -> Iterator[str]:
    for rule in policy["spec"].get("ingress", ()):
        yield from (str(port["port"]) for port in rule.get("ports", ()))
