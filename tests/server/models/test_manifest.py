"""A manifest says what a version is, the same to every reader, and a damaged one is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from inferwire_server.models.errors import ManifestInvalid
from inferwire_server.models.manifest import (
    FileRole,
    from_json,
    read_manifest,
    served_fingerprint,
    to_json,
)

from tests.server.models.stored import CONTENT, small_manifest


def test_what_was_written_is_read_back() -> None:
    manifest = small_manifest(preferred_for=("fast",))

    assert from_json(to_json(manifest), origin="manifest.json") == manifest


@pytest.mark.parametrize("role", [FileRole.WEIGHTS, FileRole.TOKENIZER, FileRole.CHAT_TEMPLATE])
def test_fingerprint_follows_weights_tokenizer_and_template(role: FileRole) -> None:
    changed = {path: (kind, data + b"!" if kind is role else data) for path, (kind, data) in CONTENT.items()}

    assert small_manifest(content=changed).fingerprint != small_manifest().fingerprint


def test_fingerprint_does_not_follow_name_source_or_licence_file() -> None:
    with_licence = {**CONTENT, "LICENSE": (FileRole.LICENCE, b"as you like")}

    assert small_manifest("other", "two", content=with_licence).fingerprint == small_manifest().fingerprint


@pytest.mark.parametrize(
    "change",
    [{"engine": "tensorrt-llm"}, {"engine_version": "2"}, {"profile": "exact"}],
    ids=lambda change: next(iter(change)),
)
def test_served_fingerprint_follows_the_engine(change: dict[str, str]) -> None:
    engine = {"engine": "openvino-genai", "engine_version": "1", "profile": "fast"}

    assert served_fingerprint(small_manifest(), **engine) != served_fingerprint(
        small_manifest(), **{**engine, **change}
    )


def test_served_fingerprint_cannot_be_shifted_between_its_parts() -> None:
    one = served_fingerprint(small_manifest(), engine="a b", engine_version="c", profile="")
    other = served_fingerprint(small_manifest(), engine="a", engine_version="b c", profile="")

    assert one != other


def _document() -> dict[str, Any]:
    document: dict[str, Any] = json.loads(to_json(small_manifest()))
    return document


def _refusal(document: object) -> str:
    with pytest.raises(ManifestInvalid) as refused:
        from_json(json.dumps(document), origin="models/small/one/manifest.json")
    assert "manifest.json" in refused.value.problem
    assert "pull the model again" in refused.value.advice
    return refused.value.problem


def test_another_schema_is_refused_by_its_number() -> None:
    assert "schema 2" in _refusal({**_document(), "schema": 2})


def test_a_missing_fact_is_named() -> None:
    document = _document()
    del document["architecture"]["layers"]

    assert "architecture.layers" in _refusal(document)


def test_an_unknown_fact_is_refused_not_ignored() -> None:
    assert "quantisation" in _refusal({**_document(), "quantisation": "q2"})


@pytest.mark.parametrize("path", ["../model.gguf", "/etc/passwd", "a\\b", "c:d", "", "..", "manifest.json"])
def test_a_file_outside_the_version_cannot_be_listed(path: str) -> None:
    document = _document()
    document["files"][0]["path"] = path

    assert "not a plain file name" in _refusal(document)


def test_a_fingerprint_that_does_not_follow_from_the_files_is_refused() -> None:
    assert "does not follow" in _refusal({**_document(), "fingerprint": "0" * 64})


def test_text_that_is_no_json_is_refused() -> None:
    with pytest.raises(ManifestInvalid, match="is not JSON"):
        from_json(b"{", origin="manifest.json")


def test_a_folder_without_a_manifest_is_refused_by_its_path(tmp_path: Path) -> None:
    with pytest.raises(ManifestInvalid, match=r"manifest\.json cannot be read"):
        read_manifest(tmp_path)
