"""What is known of a model that is being served."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from inferwire_server.domain.generation import Sampling


class ModelState(enum.IntEnum):
    """As on the wire."""

    LOADING = 1
    READY = 2
    UNAVAILABLE = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelDefaults:
    """What an unset request field means for this model."""

    max_output_tokens: int = 512
    sampling: Sampling = field(default_factory=Sampling)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """The identity and bounds of one model version. Digests are lower-case hex sha256."""

    name: str
    version: str
    fingerprint: str
    tokenizer_digest: str
    chat_template_digest: str
    engine: str
    """Engine name, version and profile, as in `openvino-genai 2026.4.1 exact`."""
    max_context_tokens: int
    vocabulary_size: int
    end_token_ids: frozenset[int]
    chat_roles: tuple[str, ...] = ()
    """Roles the chat template knows; empty when the model has no chat template."""
    defaults: ModelDefaults = field(default_factory=ModelDefaults)
    aliases: tuple[str, ...] = ()
    licence: str = ""

    @property
    def qualified_name(self) -> str:
        return f"{self.name}@{self.version}"
