"""An overlay, or compose's file, as a release deploys it: every image by the digest that the releaser names.

python -m tools.release_manifests gpu --image inferwire:gpu=REGISTRY/inferwire@sha256:… >gpu.yaml
python -m tools.release_manifests compose --image … >compose.yaml

The manifests in this repository name images by what they are, never where they lie and which build; here an image
without a digest is refused, so a release cannot change by itself.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from tools.ops_check.programs import complaints, run

ROOT = Path(__file__).resolve().parents[1]
COMPOSE = "compose"
_BY_DIGEST = re.compile(r"\S+@sha256:[0-9a-f]{64}")


class ReleaseError(Exception):
    """There is nothing to release; one line for each reason."""


def released(documents: list[Any], images: Mapping[str, str]) -> list[Any]:
    """The documents with their images replaced. Raises ReleaseError for each image that has no digest then."""
    pinned = [_pinned(each, images) for each in documents]
    named = {name for each in documents for name in image_names(each)}
    wrong = [f"{name} is in none of the manifests" for name in sorted(set(images) - named)]
    left = sorted({name for each in pinned for name in image_names(each) if not _BY_DIGEST.fullmatch(name)})
    wrong += [f"{name} has no digest; name one by --image {name}=…@sha256:…" for name in left]
    if wrong:
        raise ReleaseError("\n".join(wrong))
    return pinned


def image_names(node: Any) -> Iterator[str]:
    """Every image that a document names: containers', volumes', services'."""
    if isinstance(node, dict):
        for key, value in node.items():
            if key == "image" and isinstance(value, str):
                yield value
            elif key == "image" and isinstance(value, dict) and "reference" in value:
                yield value["reference"]
            else:
                yield from image_names(value)
    elif isinstance(node, list):
        for each in node:
            yield from image_names(each)


def rendering(name: str, root: Path = ROOT) -> list[Any]:
    """An overlay's objects, or compose's file. Raises ReleaseError."""
    if name == COMPOSE:
        done = run("docker-compose", "--file", "docker/compose.yaml", "config", "--no-path-resolution", folder=root)
    else:
        done = run("kubectl", "kustomize", f"k8s/overlays/{name}", folder=root)
    if done.returncode:
        raise ReleaseError("\n".join(complaints(done)))
    return list(yaml.safe_load_all(done.stdout))


def main(arguments: list[str]) -> int:
    """Print the documents; 1 when there is nothing to release."""
    parser = argparse.ArgumentParser(prog="python -m tools.release_manifests", description=__doc__.split("\n\n")[0])
    parser.add_argument("name", help="an overlay of k8s/overlays, or compose")
    parser.add_argument("--image", action="append", default=[], metavar="NAME=REFERENCE@sha256:DIGEST")
    given = parser.parse_args(arguments)
    images = dict(each.partition("=")[::2] for each in given.image)
    try:
        documents = released(rendering(given.name), images)
    except ReleaseError as error:
        print(error, file=sys.stderr)
        return 1
    yaml.safe_dump_all(documents, sys.stdout, sort_keys=False)
    return 0


def _pinned(node: Any, images: Mapping[str, str]) -> Any:
    if isinstance(node, list):
        return [_pinned(each, images) for each in node]
    if not isinstance(node, dict):
        return node
    return {key: _image(value, images) if key == "image" else _pinned(value, images) for key, value in node.items()}


def _image(value: Any, images: Mapping[str, str]) -> Any:
    if isinstance(value, str):
        return images.get(value, value)
    return value | {"reference": images.get(value["reference"], value["reference"])}


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
