"""The manifest of a model version: what its files must be, and what the server must know before it opens them."""

from __future__ import annotations

import enum
import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pydantic

from inferwire_server.domain.generation import Sampling
from inferwire_server.models.errors import ManifestInvalid

MANIFEST_NAME = "manifest.json"
SCHEMA = 1
_CONFIG = pydantic.ConfigDict(extra="forbid")


class FileRole(enum.StrEnum):
    """What a file is for; WEIGHTS, TOKENIZER and CHAT_TEMPLATE make up the fingerprint."""

    WEIGHTS = "weights"
    TOKENIZER = "tokenizer"
    CHAT_TEMPLATE = "chat_template"
    DEFAULTS = "defaults"
    LICENCE = "licence"


class WeightsFormat(enum.StrEnum):
    """How the weights are stored."""

    GGUF = "gguf"
    OPENVINO_IR = "openvino_ir"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEntry:
    """One file of the version."""

    __pydantic_config__ = _CONFIG
    path: str
    """A plain file name inside the version's folder."""
    role: FileRole
    sha256: str
    """Lower-case hex."""
    size: int
    """Bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where the version came from."""

    __pydantic_config__ = _CONFIG
    kind: str
    """`package`, `file`, `folder` or `hub`."""
    location: str
    """Package and version, file or folder name, or hub repository."""
    revision: str = ""
    """The hub's commit; empty for the other kinds."""
    sha256: dict[str, str] = field(default_factory=dict)
    """Digests of the files as they were fetched, by file name."""
    processing: str = ""
    """What was done to the weights; empty when they are as they came."""

    def __str__(self) -> str:
        return f"{self.location}@{self.revision[:12]}" if self.revision else self.location


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """What sizes the memory of a decoder-only transformer."""

    __pydantic_config__ = _CONFIG
    family: str
    """As in `llama` or `qwen2`."""
    layers: int
    attention_heads: int
    kv_heads: int
    key_size: int
    """Values of one key vector of one head."""
    value_size: int
    """Values of one value vector of one head."""
    parameters: int
    """Number of weights; 0 when unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DefaultSampling:
    """What the model's makers use; None is unset."""

    __pydantic_config__ = _CONFIG
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None

    def resolve(self) -> Sampling:
        """Give the sampling in which each unset field has the service's own default."""
        plain = Sampling()
        return Sampling(
            temperature=plain.temperature if self.temperature is None else self.temperature,
            top_p=plain.top_p if self.top_p is None else self.top_p,
            top_k=plain.top_k if self.top_k is None else self.top_k,
            min_p=plain.min_p if self.min_p is None else self.min_p,
            repetition_penalty=plain.repetition_penalty if self.repetition_penalty is None else self.repetition_penalty,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """Everything known of a model version. Digests are lower-case hex sha256."""

    __pydantic_config__ = _CONFIG
    schema: int = SCHEMA
    name: str
    version: str
    published_at: str
    """UTC, ISO 8601."""
    source: Source
    licence: str
    """An SPDX identifier where the source gives one, else its own words, or empty."""
    format: WeightsFormat
    weights: str
    """How the weights are quantised, as in `f16` or `q8_0`; `mixed` when tensors differ."""
    preferred_for: tuple[str, ...] = ()
    """Engine profiles that choose this version when the caller names none."""
    files: tuple[FileEntry, ...]
    fingerprint: str
    tokenizer_digest: str
    chat_template_digest: str
    """Empty when the model has no chat template."""
    architecture: Architecture
    context_tokens: int
    vocabulary_size: int
    beginning_token_id: int | None = None
    adds_beginning_token: bool = False
    """Whether encoding with special tokens puts `beginning_token_id` first."""
    end_token_ids: tuple[int, ...]
    chat_roles: tuple[str, ...] = ()
    sampling: DefaultSampling = field(default_factory=DefaultSampling)

    @property
    def qualified_name(self) -> str:
        return f"{self.name}@{self.version}"

    @property
    def weights_bytes(self) -> int:
        """Size of the weights on disk."""
        return sum(entry.size for entry in self.files if entry.role is FileRole.WEIGHTS)

    def of_role(self, role: FileRole) -> tuple[FileEntry, ...]:
        """Files of one role, in the manifest's order."""
        return tuple(entry for entry in self.files if entry.role is role)


_ADAPTER = pydantic.TypeAdapter(Manifest)


def content_fingerprint(files: tuple[FileEntry, ...]) -> str:
    """Digest what decides a model's behaviour: weights, tokenizer and chat template."""
    covered = (FileRole.WEIGHTS, FileRole.TOKENIZER, FileRole.CHAT_TEMPLATE)
    facts = sorted([entry.role.value, entry.path, entry.sha256] for entry in files if entry.role in covered)
    return _digest(facts)


def served_fingerprint(manifest: Manifest, *, engine: str, engine_version: str, profile: str) -> str:
    """Digest what decides the tokens a server gives: the model's content and the engine that runs it."""
    return _digest([manifest.fingerprint, engine, engine_version, profile])


def digest_of(files: tuple[FileEntry, ...], role: FileRole) -> str:
    """Give the sha256 of the only file of a role; empty when there is none."""
    return next((entry.sha256 for entry in files if entry.role is role), "")


def to_json(manifest: Manifest) -> str:
    """Write a manifest as stable, readable JSON."""
    return json.dumps(_ADAPTER.dump_python(manifest, mode="json"), indent=2, ensure_ascii=False) + "\n"


def from_json(text: str | bytes, *, origin: str) -> Manifest:
    """Read a manifest. Raises ManifestInvalid; `origin` names the file in its message."""
    advice = "Remove this version and pull the model again."
    try:
        document = json.loads(text)
    except ValueError as error:
        raise ManifestInvalid(f"{origin} is not JSON: {error}", advice) from error
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        found = document.get("schema") if isinstance(document, dict) else None
        raise ManifestInvalid(f"{origin} has schema {found!r}; this release reads schema {SCHEMA}", advice)
    try:
        manifest = _ADAPTER.validate_python(document)
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ManifestInvalid(f"{origin}: {where}: {first['msg']}", advice) from error
    _refuse_inconsistent(manifest, origin, advice)
    return manifest


def read_manifest(folder: Path) -> Manifest:
    """Read `manifest.json` of a version's folder. Raises ManifestInvalid."""
    path = folder / MANIFEST_NAME
    try:
        text = path.read_bytes()
    except OSError as error:
        problem = f"{path} cannot be read: {error.strerror}"
        raise ManifestInvalid(problem, "Pull the model, or point to the folder that holds it.") from error
    return from_json(text, origin=str(path))


def _refuse_inconsistent(manifest: Manifest, origin: str, advice: str) -> None:
    names = [entry.path for entry in manifest.files]
    unsafe = [name for name in names if not _is_plain_file_name(name)]
    if unsafe:
        raise ManifestInvalid(f"{origin}: files: {unsafe[0]!r} is not a plain file name", advice)
    if len(set(names)) != len(names):
        raise ManifestInvalid(f"{origin}: files: a name is listed twice", advice)
    if not manifest.of_role(FileRole.WEIGHTS) or len(manifest.of_role(FileRole.TOKENIZER)) != 1:
        raise ManifestInvalid(f"{origin}: files: weights and exactly one tokenizer must be listed", advice)
    for stated, actual in (
        (manifest.fingerprint, content_fingerprint(manifest.files)),
        (manifest.tokenizer_digest, digest_of(manifest.files, FileRole.TOKENIZER)),
        (manifest.chat_template_digest, digest_of(manifest.files, FileRole.CHAT_TEMPLATE)),
    ):
        if stated != actual:
            raise ManifestInvalid(f"{origin}: a digest does not follow from the listed files", advice)


def _is_plain_file_name(name: str) -> bool:
    return bool(name) and name not in (".", "..", MANIFEST_NAME) and not set(name) & set("/\\:\0")


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, separators=(",", ":")).encode()).hexdigest()
