"""`make ops-check` notices what is wrong: each error below is planted in a copy of the files and named by its check."""

from __future__ import annotations

import functools
import importlib
import shutil
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
OVERLAY = "region-us"
"""Has every component that goes with a Deployment, but for the two of another way to serve."""
LEFT_OUT = ("inferencepool", "plaintext", "weights-oci")


class Planted(NamedTuple):
    """In `file`, `old` becomes `new`; then `check` says `says`."""

    check: str
    says: str
    file: str
    old: str
    new: str


BASE, GPU = "k8s/base/deployment.yaml", "k8s/components/gpu/server.yaml"
ERRORS = [
    Planted(
        "server_settings", "INFERWIRE_DRAIN_LIMT is no setting", "k8s/base/settings.env", "DRAIN_SETTLE", "DRAIN_LIMT"
    ),
    Planted("server_settings", "but the server listens on", BASE, "containerPort: 9090", "containerPort: 9091"),
    Planted("server_settings", "killed after 301 s", GPU, "Seconds: 360", "Seconds: 301"),
    Planted(
        "server_settings",
        "the startup probe gives up after 1000 s",
        GPU,
        "failureThreshold: 200",
        "failureThreshold: 100",
    ),
    Planted("server_settings", "tls_certificate: needs tls_key too", BASE, "INFERWIRE_TLS_KEY", "TLS_KEY"),
    Planted(
        "server_settings",
        "nothing is mounted for api_keys_secret",
        BASE,
        "mountPath: /run/inferwire/keys",
        "mountPath: /run/keys",
    ),
    Planted("server_settings", "enableServiceLinks", BASE, "enableServiceLinks: false", "enableServiceLinks: true"),
    Planted("probes", "startupProbe asks for", BASE, "service: startup", "service: started"),
    Planted("probes", "readiness takes 40 s to fail", BASE, "failureThreshold: 2\n", "failureThreshold: 20\n"),
    Planted("probes", "liveness restarts after 10 s", BASE, "failureThreshold: 6", "failureThreshold: 1"),
    Planted(
        "selectors", "PodDisruptionBudget inferwire", "k8s/base/pdb.yaml", "component: server", "component: servers"
    ),
    Planted("selectors", "not headless", "k8s/base/service-headless.yaml", "clusterIP: None", "type: ClusterIP"),
    Planted(
        "selectors",
        "has no port metric\n",
        "k8s/components/monitoring/podmonitor.yaml",
        "port: metrics",
        "port: metric",
    ),
    Planted("selectors", "nothing spreads the pods over topology", BASE, "topology.kubernetes.io/zone", "zone"),
    Planted(
        "network", "no NetworkPolicy holds its Egress", "k8s/base/networkpolicy.yaml", "[Ingress, Egress]", "[Ingress]"
    ),
    Planted(
        "network",
        "lets anybody in at metrics",
        "k8s/components/monitoring/networkpolicy.yaml",
        "port: metrics",
        "port: grpc",
    ),
    Planted("containment", "it may run as root", BASE, "runAsNonRoot: true", "runAsNonRoot: false"),
    Planted("containment", "it keeps capabilities", BASE, "drop: [ALL]", "drop: [NET_RAW]"),
    Planted("containment", "its root file system can be written", BASE, "Filesystem: true", "Filesystem: false"),
    Planted(
        "containment",
        "the weights at /models can be written",
        "k8s/components/weights-pvc/server.yaml",
        "mountPath: /models\n              readOnly: true",
        "mountPath: /models",
    ),
    Planted(
        "scaling",
        "the server has no inferwire_waiting_requests",
        "k8s/components/keda/scaledobject.yaml",
        "inferwire_waiting_generations",
        "inferwire_waiting_requests",
    ),
    Planted("images", "fixes a build here", GPU, "inferwire:gpu", f"inferwire:gpu@sha256:{'0' * 64}"),
    Planted("schemas", "1.33: spec.replicas", BASE, "replicas: 2", 'replicas: "2"'),
    Planted("schemas", "Additional properties", "k8s/base/serviceaccount.yaml", "automountService", "mountService"),
    Planted(
        "schemas",
        "unknown kind apps/v1 DeamonSet",
        "k8s/components/weights-pvc/claim.yaml",
        "apiVersion: v1\nkind: PersistentVolumeClaim",
        "apiVersion: apps/v1\nkind: DeamonSet",
    ),
    Planted(
        "schemas",
        "PodMonitor inferwire: spec.podMetricsEndpoints.0.interval",
        "k8s/components/monitoring/podmonitor.yaml",
        "interval: 15s",
        "interval: often",
    ),
    Planted(
        "cluster_rules",
        "prometheusrule.yaml is stale",
        "k8s/components/monitoring/prometheusrule.yaml",
        "severity: page",
        "severity: ticket",
    ),
    Planted("yaml_style", "trailing spaces", "docker/envoy/envoy.yaml", "static_resources:", "static_resources:  "),
    Planted("dockerfiles", "DL3007", "docker/Dockerfile.gpu", "AS build\n", "AS build\nFROM python:latest AS again\n"),
]
CHECKS = sorted({each.check for each in ERRORS})


def copied(folder: Path) -> Path:
    """The files of docker/ and k8s/, with one overlay and what it needs."""
    for name in ("docker", "k8s"):
        shutil.copytree(ROOT / name, folder / name)
    for overlay in (folder / "k8s" / "overlays").iterdir():
        if overlay.name != OVERLAY:
            shutil.rmtree(overlay)
    for component in LEFT_OUT:
        shutil.rmtree(folder / "k8s" / "components" / component)
    return folder


@functools.cache
def said(check: str, root: Path) -> str:
    lines: list[str] = importlib.import_module(f"tools.ops_check.{check}").problems(root)
    return "".join(f"{line}\n" for line in lines)


def plant(root: Path, error: Planted) -> None:
    path = root / error.file
    text = path.read_text()
    assert error.old in text, f"{error.file} has no {error.old!r}"
    path.write_text(text.replace(error.old, error.new))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copied(tmp_path_factory.mktemp("whole"))


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All errors at once."""
    root = copied(tmp_path_factory.mktemp("broken"))
    for error in ERRORS:
        plant(root, error)
    return root


@pytest.mark.parametrize("check", CHECKS)
def test_a_check_finds_nothing_where_nothing_is_wrong(check: str, whole: Path) -> None:
    assert said(check, whole) == ""


@pytest.mark.parametrize("error", ERRORS, ids=[f"{each.check}: {each.says.strip()}" for each in ERRORS])
def test_a_planted_error_is_found(error: Planted, broken: Path) -> None:
    assert error.says in said(error.check, broken)


def test_a_kustomization_that_cannot_be_built_is_found(tmp_path: Path) -> None:
    root = copied(tmp_path)
    (root / "k8s" / "base" / "pdb.yaml").unlink()

    assert "base: " in said("rendering", root)


def test_a_script_that_bash_cannot_read_is_found(tmp_path: Path) -> None:
    script = tmp_path / "k8s" / "overlays" / "multinode" / "drain.sh"
    script.parent.mkdir(parents=True)
    script.write_text((ROOT / "k8s/overlays/multinode/drain.sh").read_text().replace("; done", ""))

    assert "k8s/overlays/multinode/drain.sh: line" in said("scripts", tmp_path)


def test_a_file_without_a_caption_and_a_caption_without_a_file_are_found(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "k8s", tmp_path / "k8s")
    (tmp_path / "k8s" / "base" / "pdb.yaml").rename(tmp_path / "k8s" / "base" / "budget.yaml")

    found = said("captions", tmp_path)

    assert found == "k8s/base/budget.yaml: no caption in k8s/README.md\nk8s/README.md: there is no base/pdb.yaml\n"


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("networks:\n  serving:", "nets:\n  serving:", "nets"),
        ('"127.0.0.1:8080:8080"', '"8080:8080"', "envoy: port 8080 is open to the world"),
        ("cap_drop: [ALL]", "cap_drop: []", "inferwire-eu: it keeps capabilities"),
        ("./envoy:/etc", "./envoi:/etc", "envoi is not there"),
    ],
)
def test_what_compose_refuses_or_leaves_open_is_found(tmp_path: Path, old: str, new: str, says: str) -> None:
    shutil.copytree(ROOT / "docker", tmp_path / "docker")
    plant(tmp_path, Planted("compose", says, "docker/compose.yaml", old, new))

    assert says in said("compose", tmp_path)


@pytest.mark.slow
def test_what_checkov_finds_is_found(tmp_path: Path) -> None:
    if not (ROOT / ".venv-checkov").exists():
        pytest.skip("checkov has an environment of its own: make ops-check")
    root = copied(tmp_path)
    for file, old, new in (
        (BASE, "allowPrivilegeEscalation: false", "allowPrivilegeEscalation: true"),
        ("docker/Dockerfile", "USER 10001:10001\n", ""),
    ):
        plant(root, Planted("checkov", "", file, old, new))

    found = said("checkov", root)

    assert "CKV_K8S_20" in found
    assert "Dockerfile: /Dockerfile.: CKV_DOCKER_3" in found
