"""The recipe of the GPU image, as far as it can be held without building it."""

from __future__ import annotations

import re
from pathlib import Path

RECIPE = Path(__file__).parents[3] / "docker" / "Dockerfile.gpu"
TEXT = RECIPE.read_text()
LINES = [line for line in TEXT.splitlines() if not line.startswith("#")]


def test_the_engine_is_the_release_container_of_the_version_and_the_build_that_the_builder_names() -> None:
    base = [line for line in LINES if line.startswith("FROM") and "tensorrt-llm" in line]
    assert base == ["FROM ${TENSORRT_LLM_REGISTRY}/nvidia/tensorrt-llm/release:1.2.1@${TENSORRT_LLM_DIGEST}"]


def test_without_a_registry_and_a_digest_there_is_nothing_to_build_from() -> None:
    arguments = {line for line in LINES if line.startswith("ARG TENSORRT_LLM")}
    assert arguments == {"ARG TENSORRT_LLM_REGISTRY", "ARG TENSORRT_LLM_DIGEST"}
    assert not re.search(r"sha256:[0-9a-f]{64}", TEXT)


def test_what_the_container_brings_is_never_installed_again() -> None:
    installs = [line for line in LINES if "inferwire[" in line or ("tensorrt" in line.lower() and "pip" in line)]
    assert len(installs) == 1
    assert '"inferwire[server] @ file://' in installs[0]
    assert "--constraint /tmp/before.txt" in TEXT
    assert 'test -z "$(comm -23 /tmp/before.txt /tmp/after.txt)"' in TEXT


def test_it_does_not_run_as_root() -> None:
    users = [line for line in LINES if line.startswith("USER")]
    assert users == ["USER 10001:10001"]
