"""What the Kubernetes manifests promise must be what the server does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from inferwire_server.rpc import health
from inferwire_server.settings import Settings

BASE = Path(__file__).resolve().parents[2] / "k8s" / "base"


@pytest.fixture(scope="module")
def manifests() -> dict[str, Any]:
    """What `kubectl kustomize` makes of the base, by kind."""
    kubectl = Path(sys.executable).parent / "kubectl"
    done = subprocess.run([kubectl, "kustomize", BASE], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return {each["kind"]: each for each in yaml.safe_load_all(done.stdout)}


@pytest.fixture(scope="module")
def pod(manifests: dict[str, Any]) -> dict[str, Any]:
    spec: dict[str, Any] = manifests["Deployment"]["spec"]["template"]["spec"]
    return spec


@pytest.fixture(scope="module")
def server(pod: dict[str, Any]) -> dict[str, Any]:
    container: dict[str, Any] = pod["containers"][0]
    return container


@pytest.fixture(scope="module")
def settings(server: dict[str, Any]) -> Settings:
    """The settings that the container's environment gives."""
    given = {each["name"].removeprefix("INFERWIRE_").lower(): each["value"] for each in server["env"]}
    return Settings(**given)


@pytest.mark.parametrize(
    ("probe", "service"),
    [("startupProbe", health.STARTUP), ("readinessProbe", health.READINESS), ("livenessProbe", health.LIVENESS)],
)
def test_each_probe_asks_for_its_own_health_service(
    server: dict[str, Any], settings: Settings, probe: str, service: str
) -> None:
    assert server[probe]["grpc"] == {"port": settings.port, "service": service}


def test_the_pod_is_not_killed_before_its_drain_may_end(pod: dict[str, Any], settings: Settings) -> None:
    assert pod["terminationGracePeriodSeconds"] > settings.drain_settle + settings.drain_limit + 10


def test_ports_are_the_ones_the_server_listens_on(server: dict[str, Any], settings: Settings) -> None:
    ports = {each["name"]: each["containerPort"] for each in server["ports"]}

    assert ports == {"grpc": settings.port, "metrics": settings.metrics_port}


def test_clients_see_every_pod(manifests: dict[str, Any]) -> None:
    assert manifests["Service"]["spec"]["clusterIP"] == "None"


def test_the_service_selects_the_pods(manifests: dict[str, Any]) -> None:
    labels = manifests["Deployment"]["spec"]["template"]["metadata"]["labels"]

    assert manifests["Service"]["spec"]["selector"].items() <= labels.items()


def test_the_pulled_model_is_the_served_one(pod: dict[str, Any], settings: Settings) -> None:
    assert pod["initContainers"][0]["args"] == ["pull", settings.model]


def test_no_container_may_become_root_or_write_outside_its_volumes(pod: dict[str, Any]) -> None:
    contexts = [each["securityContext"] for each in (*pod["initContainers"], *pod["containers"])]

    assert pod["securityContext"]["runAsNonRoot"]
    assert {context["allowPrivilegeEscalation"] for context in contexts} == {False}
    assert {context["readOnlyRootFilesystem"] for context in contexts} == {True}
    assert {tuple(context["capabilities"]["drop"]) for context in contexts} == {("ALL",)}
