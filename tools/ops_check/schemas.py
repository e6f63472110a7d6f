"""Each object is what its kind allows, on the oldest and the newest Kubernetes that the manifests are for.

Kinds that Kubernetes does not bring are held to the schemas in schemas/, which know the fields used here and no others;
a kind with neither is a problem.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from pathlib import Path

import jsonschema
import kubernetes_validate

from tools.ops_check.rendering import Manifest, rendered

VERSIONS = ("1.33", "1.37")
_OWN = Path(__file__).parent / "schemas"
_POD_TEMPLATES = ("leaderTemplate", "workerTemplate")


def problems(root: Path) -> list[str]:
    """One line for each object that some version refuses; an object that several kustomizations share is named once."""
    first_in: dict[str, str] = {}
    for each in rendered(root):
        for manifest in each.objects:
            first_in.setdefault(json.dumps(manifest, sort_keys=True), each.name)
    return [f"{name}: {line}" for text, name in first_in.items() for line in invalid(json.loads(text))]


def invalid(manifest: Manifest) -> Iterator[str]:
    """Why it is not valid."""
    where = f"{manifest['kind']} {manifest['metadata']['name']}"
    schema = _own_schema(manifest["apiVersion"], manifest["kind"])
    if schema is None:
        for version in VERSIONS:
            yield from (f"{where}: {line}" for line in _refused_by(version, manifest))
        return
    for error in jsonschema.Draft202012Validator(schema).iter_errors(manifest):
        yield f"{where}: {'.'.join(map(str, error.absolute_path))}: {error.message}"
    for name, template in manifest["spec"].get("leaderWorkerTemplate", {}).items():
        if name in _POD_TEMPLATES:
            pods = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": name}, "template": template}
            yield from (f"{where}: {line}" for line in invalid(pods))


def _refused_by(version: str, manifest: Manifest) -> Iterator[str]:
    try:
        kubernetes_validate.validate(manifest, version, strict=True)
    except kubernetes_validate.ValidationError as error:
        yield f"{version}: {'.'.join(map(str, error.path))}: {error.message}"
    except kubernetes_validate.SchemaNotFoundError:
        yield f"{version}: unknown kind {manifest['apiVersion']} {manifest['kind']}"


@functools.cache
def _own_schema(version: str, kind: str) -> Manifest | None:
    path = _OWN / f"{kind.lower()}.json"
    if not path.exists():
        return None
    schema: Manifest = json.loads(path.read_text())
    return schema if schema["properties"]["apiVersion"]["const"] == version else None
