"""Compose takes its file, with the images' defaults and with others; every service is contained."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from tools.ops_check.programs import complaints, run

_FILE = "docker/compose.yaml"


def problems(root: Path) -> list[str]:
    """What compose refuses, files that are not there, services that may do too much or are open to the world."""
    done = run("docker-compose", "--file", _FILE, "config", folder=root)
    if done.returncode:
        return complaints(done)
    services: dict[str, Any] = yaml.safe_load(done.stdout)["services"]
    return [f"{_FILE}: {name}: {line}" for name, service in services.items() for line in _of(service)]


def _of(service: dict[str, Any]) -> Iterator[str]:
    if not service.get("read_only"):
        yield "its root file system can be written"
    if service.get("cap_drop") != ["ALL"]:
        yield "it keeps capabilities"
    if "no-new-privileges:true" not in service.get("security_opt", ()):
        yield "it may gain privileges"
    for port in service.get("ports", ()):
        if port.get("host_ip") != "127.0.0.1":
            yield f"port {port['published']} is open to the world"
    for volume in service.get("volumes", ()):
        if volume["type"] == "bind":
            if not Path(volume["source"]).exists():
                yield f"{volume['source']} is not there"
            if not volume.get("read_only"):
                yield f"{volume['source']} can be written"
