"""Small stored versions, made without a source."""

from __future__ import annotations

import hashlib

from inferwire_server.models.manifest import (
    MANIFEST_NAME,
    Architecture,
    DefaultSampling,
    FileEntry,
    FileRole,
    Manifest,
    Source,
    WeightsFormat,
    content_fingerprint,
    digest_of,
    to_json,
)
from inferwire_server.models.repository import ModelRepository
from inferwire_server.models.version import ModelVersion

CONTENT = {
    "chat_template.jinja": (FileRole.CHAT_TEMPLATE, b"{{ messages }}"),
    "model.gguf": (FileRole.WEIGHTS, b"weights" * 1000),
    "tokenizer.json": (FileRole.TOKENIZER, b"{}"),
}


def small_manifest(
    name: str = "small",
    version: str = "one",
    *,
    preferred_for: tuple[str, ...] = (),
    published_at: str = "2026-01-01T00:00:00+00:00",
    content: dict[str, tuple[FileRole, bytes]] = CONTENT,
) -> Manifest:
    """A manifest that fits `content`."""
    files = tuple(
        FileEntry(path=path, role=role, sha256=hashlib.sha256(data).hexdigest(), size=len(data))
        for path, (role, data) in content.items()
    )
    return Manifest(
        name=name,
        version=version,
        published_at=published_at,
        source=Source(kind="file", location="model.gguf"),
        licence="Apache-2.0",
        format=WeightsFormat.GGUF,
        weights="q8_0",
        preferred_for=preferred_for,
        files=files,
        fingerprint=content_fingerprint(files),
        tokenizer_digest=digest_of(files, FileRole.TOKENIZER),
        chat_template_digest=digest_of(files, FileRole.CHAT_TEMPLATE),
        architecture=Architecture(
            family="llama", layers=30, attention_heads=9, kv_heads=3, key_size=64, value_size=64, parameters=135_000_000
        ),
        context_tokens=8192,
        vocabulary_size=49152,
        end_token_ids=(2,),
        sampling=DefaultSampling(temperature=0.2, top_p=0.9),
    )


def store(repository: ModelRepository, manifest: Manifest) -> ModelVersion:
    """Publish a manifest made by `small_manifest` with its files."""
    with repository.writing(manifest.name) as writer, writer.draft() as draft:
        for path, (_, data) in CONTENT.items():
            (draft / path).write_bytes(data)
        (draft / MANIFEST_NAME).write_text(to_json(manifest), encoding="utf-8")
        return writer.publish(draft, manifest)
