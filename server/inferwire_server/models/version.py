"""One stored version of a model: where its parts are, and what a server publishes about it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from inferwire_server.domain.model import ModelDefaults, ModelFacts
from inferwire_server.models.manifest import FileRole, Manifest, WeightsFormat, served_fingerprint
from inferwire_server.models.progress import ProgressSink, silent
from inferwire_server.models.verification import verify_folder


@dataclass(frozen=True, slots=True)
class EngineIdentity:
    """What runs the model, as far as it decides the tokens."""

    name: str
    """As in `openvino-genai`."""
    version: str
    profile: str
    """As in `fast` or `exact`; empty when the engine has none."""

    def __str__(self) -> str:
        return " ".join(part for part in (self.name, self.version, self.profile) if part)


@dataclass(frozen=True, slots=True)
class ModelVersion:
    """A folder and the manifest read from it. `verify` before anything is loaded."""

    path: Path
    manifest: Manifest

    @property
    def weights_path(self) -> Path:
        """What an engine opens: the GGUF file, or the folder that holds `openvino_model.xml`."""
        if self.manifest.format is WeightsFormat.OPENVINO_IR:
            return self.path
        return self.path / self.manifest.of_role(FileRole.WEIGHTS)[0].path

    @property
    def tokenizer_path(self) -> Path:
        """The `tokenizer.json`."""
        return self.path / self.manifest.of_role(FileRole.TOKENIZER)[0].path

    @property
    def chat_template(self) -> str | None:
        """The Jinja source of the chat template; None when the model has none."""
        templates = self.manifest.of_role(FileRole.CHAT_TEMPLATE)
        return (self.path / templates[0].path).read_text(encoding="utf-8") if templates else None

    @property
    def defaults(self) -> ModelDefaults:
        """What an unset request field means for this model."""
        return ModelDefaults(sampling=self.manifest.sampling.resolve())

    def verify(self, progress: ProgressSink = silent) -> None:
        """Prove every file against the manifest. Raises VerificationFailed."""
        verify_folder(self.path, self.manifest, progress)

    def facts(self, *, engine: EngineIdentity, max_context_tokens: int | None = None) -> ModelFacts:
        """Say what a server publishes; `max_context_tokens` lowers the model's own limit, never raises it."""
        manifest = self.manifest
        limit = manifest.context_tokens if max_context_tokens is None else max_context_tokens
        return ModelFacts(
            name=manifest.name,
            version=manifest.version,
            fingerprint=served_fingerprint(
                manifest, engine=engine.name, engine_version=engine.version, profile=engine.profile
            ),
            tokenizer_digest=manifest.tokenizer_digest,
            chat_template_digest=manifest.chat_template_digest,
            engine=str(engine),
            max_context_tokens=min(limit, manifest.context_tokens),
            vocabulary_size=manifest.vocabulary_size,
            end_token_ids=frozenset(manifest.end_token_ids),
            chat_roles=manifest.chat_roles,
            defaults=self.defaults,
            licence=manifest.licence,
        )
