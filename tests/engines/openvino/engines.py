"""Engines under test: on the real model and on written tables."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from inferwire_server.engines.openvino.engine import OpenVinoEngine
from inferwire_server.engines.openvino.options import OpenVinoOptions, Profile
from inferwire_server.models.version import ModelVersion

from tests.engines.openvino import byte_model


@contextlib.asynccontextmanager
async def running(options: OpenVinoOptions) -> AsyncIterator[OpenVinoEngine]:
    """A started engine, shut down at the end."""
    engine = OpenVinoEngine(options)
    await engine.start()
    try:
        yield engine
    finally:
        await engine.shutdown(0)


def model_options(version: ModelVersion, profile: Profile, **changes: Any) -> OpenVinoOptions:
    """Options for a stored model."""
    return OpenVinoOptions(
        model_path=version.weights_path,
        vocabulary_size=version.manifest.vocabulary_size,
        max_context_tokens=version.manifest.context_tokens,
        end_token_ids=frozenset(version.manifest.end_token_ids),
        profile=profile,
        **changes,
    )


def byte_model_options(path: Path, **changes: Any) -> OpenVinoOptions:
    """Options for a byte model; a small exact engine unless changed."""
    settings: dict[str, Any] = {
        "model_path": path,
        "vocabulary_size": byte_model.VOCABULARY_SIZE,
        "max_context_tokens": byte_model.MAX_CONTEXT_TOKENS,
        "end_token_ids": frozenset({byte_model.END}),
        "profile": Profile.EXACT,
        "kv_blocks": 256,
    }
    return OpenVinoOptions(**settings | changes)
