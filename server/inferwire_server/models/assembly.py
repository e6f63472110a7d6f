"""Turning a folder of finished files into a version: text files, digests, manifest."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from inferwire_server.models.chat_roles import chat_roles
from inferwire_server.models.files import sha256_of
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
from inferwire_server.models.progress import Progress, ProgressSink, Stage
from inferwire_server.models.repository import NameWriter
from inferwire_server.models.version import ModelVersion

TOKENIZER = "tokenizer.json"
CHAT_TEMPLATE = "chat_template.jinja"
GENERATION_CONFIG = "generation_config.json"
LICENCE = "LICENSE"
GGUF_WEIGHTS = "model.gguf"
_ROLES = {
    TOKENIZER: FileRole.TOKENIZER,
    CHAT_TEMPLATE: FileRole.CHAT_TEMPLATE,
    GENERATION_CONFIG: FileRole.DEFAULTS,
    LICENCE: FileRole.LICENCE,
}
_VERSION_DIGITS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class TextSide:
    """How text becomes ids and back, whatever format it came in."""

    tokenizer: str
    """The whole tokenizer.json."""
    chat_template: str | None
    beginning_token_id: int | None
    adds_beginning_token: bool
    end_token_ids: tuple[int, ...]
    sampling: DefaultSampling


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """What the manifest states beyond its files."""

    source: Source
    licence: str
    format: WeightsFormat
    weights: str
    architecture: Architecture
    context_tokens: int
    vocabulary_size: int
    preferred_for: tuple[str, ...] = ()


def write_text_side(draft: Path, text: TextSide) -> None:
    """Write tokenizer, chat template and generation defaults into a draft."""
    (draft / TOKENIZER).write_text(text.tokenizer, encoding="utf-8")
    if text.chat_template is not None:
        (draft / CHAT_TEMPLATE).write_text(text.chat_template, encoding="utf-8", newline="")
    defaults: dict[str, Any] = {"eos_token_id": list(text.end_token_ids)}
    if text.beginning_token_id is not None:
        defaults["bos_token_id"] = text.beginning_token_id
    chosen = {
        "temperature": text.sampling.temperature,
        "top_p": text.sampling.top_p,
        "top_k": text.sampling.top_k,
        "min_p": text.sampling.min_p,
        "repetition_penalty": text.sampling.repetition_penalty,
    }
    defaults.update({key: value for key, value in chosen.items() if value is not None})
    defaults["do_sample"] = defaults.get("temperature") != 0
    (draft / GENERATION_CONFIG).write_text(json.dumps(defaults, indent=2) + "\n", encoding="utf-8")


def seal(
    draft: Path, name: str, version: str | None, text: TextSide, description: Description, progress: ProgressSink
) -> Manifest:
    """Digest a draft's files and write its manifest; without a version, the fingerprint's first digits name it."""
    files = tuple(_entry(path, name, progress) for path in sorted(draft.iterdir()))
    fingerprint = content_fingerprint(files)
    manifest = Manifest(
        name=name,
        version=fingerprint[:_VERSION_DIGITS] if version is None else version,
        published_at=datetime.now(UTC).isoformat(timespec="microseconds"),
        source=description.source,
        licence=description.licence,
        format=description.format,
        weights=description.weights,
        preferred_for=description.preferred_for,
        files=files,
        fingerprint=fingerprint,
        tokenizer_digest=digest_of(files, FileRole.TOKENIZER),
        chat_template_digest=digest_of(files, FileRole.CHAT_TEMPLATE),
        architecture=description.architecture,
        context_tokens=description.context_tokens,
        vocabulary_size=description.vocabulary_size,
        beginning_token_id=text.beginning_token_id,
        adds_beginning_token=text.adds_beginning_token,
        end_token_ids=text.end_token_ids,
        chat_roles=() if text.chat_template is None else chat_roles(text.chat_template),
        sampling=text.sampling,
    )
    (draft / MANIFEST_NAME).write_text(to_json(manifest), encoding="utf-8")
    return manifest


def _entry(path: Path, name: str, progress: ProgressSink) -> FileEntry:
    size = path.stat().st_size
    digest = sha256_of(path, lambda done: progress(Progress(Stage.CHECKING, f"{name}/{path.name}", done, size)))
    return FileEntry(path=path.name, role=_ROLES.get(path.name, FileRole.WEIGHTS), sha256=digest, size=size)


def publish(writer: NameWriter, draft: Path, manifest: Manifest, progress: ProgressSink) -> ModelVersion:
    """Publish a sealed draft."""
    progress(Progress(Stage.PUBLISHING, manifest.qualified_name))
    return writer.publish(draft, manifest)
