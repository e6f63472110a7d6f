"""No container may become root, write where it need not, or change the weights."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tools.ops_check.pods import Pods, pods_of
from tools.ops_check.rendering import Manifest, rendered

_MODELS = "/models"


def problems(root: Path) -> list[str]:
    """What is not hardened; a GPU's container may have a writable root file system, nobody else."""
    return [f"{pods.where}: {line}" for each in rendered(root) for pods in pods_of(each) for line in _of(pods)]


def _of(pods: Pods) -> Iterator[str]:
    context = pods.spec.get("securityContext", {})
    if not context.get("runAsNonRoot") or not context.get("runAsUser"):
        yield "it may run as root"
    if context.get("seccompProfile", {}).get("type") != "RuntimeDefault":
        yield "its seccomp profile is not RuntimeDefault"
    if pods.spec.get("automountServiceAccountToken", True):
        yield "it holds a token of Kubernetes that it has no use for"
    for key in ("hostNetwork", "hostPID", "hostIPC"):
        if pods.spec.get(key):
            yield f"it has {key}"
    for container in pods.all_containers:
        yield from (f"{container['name']}: {line}" for line in _of_container(container))
    mounts = {mount["mountPath"]: mount for each in pods.containers for mount in each.get("volumeMounts", ())}
    if pods.rendered.is_overlay and _MODELS not in mounts:
        yield f"no weights are mounted at {_MODELS}"
    elif _MODELS in mounts and not mounts[_MODELS].get("readOnly"):
        yield f"the weights at {_MODELS} can be written"


def _of_container(container: Manifest) -> Iterator[str]:
    context = container.get("securityContext", {})
    limits = container.get("resources", {}).get("limits", {})
    has_gpu = any(name.startswith("nvidia.com/") for name in limits)
    if context.get("privileged") or context.get("allowPrivilegeEscalation", True):
        yield "it may gain privileges"
    if context.get("capabilities", {}).get("drop") != ["ALL"]:
        yield "it keeps capabilities"
    if not context.get("readOnlyRootFilesystem") and not has_gpu:
        yield "its root file system can be written"
    if "memory" not in limits:
        yield "its memory has no limit"
    if ":gpu" in container["image"] and not has_gpu:
        yield "it asks for no GPU"
