"""Each probe asks the server for a health service that it has, where it answers without TLS."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from inferwire_server.rpc import health

from tools.ops_check.pods import Pods, environment, pods_of, servers
from tools.ops_check.rendering import Manifest, rendered

SERVICES = {"startupProbe": health.STARTUP, "readinessProbe": health.READINESS, "livenessProbe": health.LIVENESS}
_UNREADY_WITHIN_S = 5
_DEAD_AFTER_S = 30


def problems(root: Path) -> list[str]:
    """Probes that are missing, ask for the wrong thing, or are too slow or too quick."""
    found = [
        f"{pods.where}: {line}"
        for each in rendered(root)
        for pods, server in servers(each)
        for line in _of(pods, server)
    ]
    return found + [
        f"{pods.where}: {container['name']} has no livenessProbe, so nobody finds out when it hangs"
        for each in rendered(root)
        for pods in pods_of(each)
        for container in pods.containers
        if "livenessProbe" not in container
    ]


def _of(pods: Pods, server: Manifest) -> Iterator[str]:
    variables = environment(pods, server)
    has_tls = "INFERWIRE_TLS_CERTIFICATE" in variables
    port = variables.get("INFERWIRE_HEALTH_PORT") or variables.get("INFERWIRE_PORT", "50051")
    if has_tls and "INFERWIRE_HEALTH_PORT" not in variables:
        yield "the kubelet speaks no TLS: INFERWIRE_HEALTH_PORT must be set"
    for name, service in SERVICES.items():
        asked = server.get(name, {}).get("grpc")
        if asked != {"port": int(port), "service": service}:
            yield f"{name} asks for {asked}, not for {service} at {port}"
    readiness, liveness = (server.get(name, {}) for name in ("readinessProbe", "livenessProbe"))
    if (unready_s := _patience_s(readiness)) > _UNREADY_WITHIN_S:
        yield f"readiness takes {unready_s} s to fail; calls go on arriving"
    if (dead_s := _patience_s(liveness)) < _DEAD_AFTER_S:
        yield f"liveness restarts after {dead_s} s, which a short pause can take"


def _patience_s(probe: Manifest) -> int:
    seconds: int = probe.get("periodSeconds", 10) * probe.get("failureThreshold", 3)
    return seconds
