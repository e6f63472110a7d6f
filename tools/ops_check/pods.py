"""The pods that an object of a cluster makes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from inferwire_server.settings import ENVIRONMENT_PREFIX, Settings
from pydantic_settings import EnvSettingsSource

from tools.ops_check.rendering import Manifest, Rendered

SERVER = "server"
"""Name of the container that serves."""


@dataclass(frozen=True)
class Pods:
    """One template of pods and where it was found."""

    where: str
    labels: dict[str, str]
    spec: Manifest
    rendered: Rendered

    @property
    def containers(self) -> list[Manifest]:
        """Those that run on; `all_containers` has the initial ones too."""
        return list(self.spec["containers"])

    @property
    def all_containers(self) -> list[Manifest]:
        return [*self.spec.get("initContainers", ()), *self.spec["containers"]]

    @property
    def server(self) -> Manifest | None:
        """The container that serves, if these pods have one."""
        return next((each for each in self.containers if each["name"] == SERVER), None)


def pods_of(rendered: Rendered) -> Iterator[Pods]:
    """Every template of pods among the objects."""
    for each in rendered.objects:
        where = f"{rendered.name}: {each['kind']} {each['metadata']['name']}"
        spec = each.get("spec", {})
        if "template" in spec:
            yield _pods(where, spec["template"], rendered)
        for part in ("leaderTemplate", "workerTemplate"):
            if part in spec.get("leaderWorkerTemplate", {}):
                yield _pods(f"{where} {part}", spec["leaderWorkerTemplate"][part], rendered)


def servers(rendered: Rendered) -> Iterator[tuple[Pods, Manifest]]:
    """Pods that serve, with their server's container."""
    for pods in pods_of(rendered):
        if pods.server is not None:
            yield pods, pods.server


def environment(pods: Pods, container: Manifest) -> dict[str, str]:
    """The variables of a container, those of its ConfigMaps included."""
    maps = {each["metadata"]["name"]: each.get("data", {}) for each in pods.rendered.of_kind("ConfigMap")}
    names = [source["configMapRef"]["name"] for source in container.get("envFrom", ()) if "configMapRef" in source]
    found = {key: value for name in names for key, value in maps.get(name, {}).items()}
    return found | {each["name"]: each.get("value", "") for each in container.get("env", ())}


def settings_of(variables: dict[str, str]) -> Settings:
    """What the server makes of its variables. Raises ValueError."""
    source = EnvSettingsSource(Settings, env_prefix=ENVIRONMENT_PREFIX)
    source.env_vars = {key.lower(): value for key, value in variables.items()}
    return Settings(**source())


def _pods(where: str, template: Manifest, rendered: Rendered) -> Pods:
    return Pods(where, template.get("metadata", {}).get("labels", {}), template["spec"], rendered)
