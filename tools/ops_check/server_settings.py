"""What the manifests set is what the server knows, and its times fit the pod's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from inferwire_server.engines.openvino.options import OpenVinoOptions
from inferwire_server.engines.tensorrt_llm.options import Options as TensorRtOptions
from inferwire_server.security.exposure import check_exposure, is_insecure, is_local
from inferwire_server.settings import ENVIRONMENT_PREFIX, Settings, SettingsError

from tools.ops_check.pods import Pods, environment, servers, settings_of
from tools.ops_check.rendering import Manifest, rendered

_SLACK_S = 10.0
"""After a drain: answers are delivered, the engine is unloaded."""
_FILES = ("tls_certificate", "tls_key", "tls_client_ca", "api_keys", "api_keys_secret")


def problems(root: Path) -> list[str]:
    """Unknown settings, other ports, too little time, an open door that is not named."""
    return [line for each in rendered(root) for pods, server in servers(each) for line in _of(pods, server)]


def _of(pods: Pods, server: Manifest) -> Iterator[str]:
    variables = environment(pods, server)
    known = {f"{ENVIRONMENT_PREFIX}{name.upper()}" for name in Settings.model_fields}
    for name in variables:
        if name.startswith(ENVIRONMENT_PREFIX) and name not in known:
            yield f"{pods.where}: {name} is no setting"
    try:
        settings = settings_of({name: value for name, value in variables.items() if name in known})
    except ValueError as error:
        yield f"{pods.where}: {error}"
        return
    if pods.spec.get("enableServiceLinks", True):
        yield f"{pods.where}: enableServiceLinks sets INFERWIRE_PORT to an address"
    yield from (f"{pods.where}: {line}" for line in _ports(server, settings))
    yield from (f"{pods.where}: {line}" for line in _times(pods.spec, server, settings))
    yield from (f"{pods.where}: {line}" for line in _doors(server, settings))


def _ports(server: Manifest, settings: Settings) -> Iterator[str]:
    ports = {each["name"]: each["containerPort"] for each in server["ports"]}
    defaults = {"grpc": Settings.model_fields["port"].default, "metrics": Settings.model_fields["metrics_port"].default}
    listening = {"grpc": settings.port, "metrics": settings.metrics_port}
    if settings.health_port is not None:
        listening["health"] = settings.health_port
    if ports != listening:
        yield f"ports {ports}, but the server listens on {listening}"
    elif not defaults.items() <= ports.items():
        yield f"ports {ports} are not the defaults {defaults}"


def _times(spec: Manifest, server: Manifest, settings: Settings) -> Iterator[str]:
    grace_s = spec.get("terminationGracePeriodSeconds", 30)
    stop = server.get("lifecycle", {}).get("preStop")
    if stop is None:
        yield "no preStop: clients meet a refusing server before they hear that it leaves"
        stop = {}
    # What a command waits for is the drain itself, which the signal would begin otherwise.
    needed_s = stop.get("sleep", {}).get("seconds", 0) + settings.drain_limit + _SLACK_S
    if grace_s <= needed_s:
        yield f"killed after {grace_s} s, but preStop, drain and {_SLACK_S:g} s more make {needed_s:g} s"
    probe = server.get("startupProbe", {})
    budget_s = probe.get("periodSeconds", 10) * probe.get("failureThreshold", 3)
    defaults = TensorRtOptions if settings.engine == "tensorrt-llm" else OpenVinoOptions
    default_s = defaults.__dataclass_fields__["start_timeout_s"].default
    loading_s = settings.engine_options.get("start_timeout_s", default_s)
    if budget_s < loading_s:
        yield f"the startup probe gives up after {budget_s} s, loading may take {loading_s:g} s"


def _doors(server: Manifest, settings: Settings) -> Iterator[str]:
    """The server's own rules, and a mount for every file that it is told to read."""
    is_named = "--insecure" in server.get("args", ())
    if is_local(settings.host):
        yield f"it listens on {settings.host}, which nobody else reaches"
    try:
        check_exposure(settings.model_copy(update={"insecure": is_named}))
    except SettingsError as error:
        yield from str(error).splitlines()
    if is_named and not is_insecure(settings):
        yield "--insecure is named without need"
    mounts = {mount["mountPath"] for mount in server.get("volumeMounts", ())}
    for name in _FILES:
        path = getattr(settings, name)
        if path is not None and str(path.parent) not in mounts:
            yield f"nothing is mounted for {name}, {path}"
