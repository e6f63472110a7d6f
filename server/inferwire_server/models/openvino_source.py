"""Versions from OpenVINO model folders, as optimum-intel exports them."""

from __future__ import annotations

import re
from collections import Counter
from math import prod
from pathlib import Path

from inferwire_server.models import assembly
from inferwire_server.models.assembly import Description
from inferwire_server.models.errors import SourceCorrupt
from inferwire_server.models.files import copy_with_sha256, require_space, storage_errors
from inferwire_server.models.manifest import Source, WeightsFormat
from inferwire_server.models.progress import Progress, ProgressSink, Stage
from inferwire_server.models.repository import NameWriter
from inferwire_server.models.transformers_folder import CONFIG, TransformersConfig, read_text_side
from inferwire_server.models.version import ModelVersion

GRAPH, GRAPH_DATA = "openvino_model.xml", "openvino_model.bin"
_SPACE_MARGIN = 64_000_000
_CONSTANT = re.compile(r'<data element_type="(\w+)" shape="([\d, ]*)" offset="\d+" size="(\d+)"')


def publish_openvino_folder(
    folder: Path,
    described_by: Path,
    name: str,
    version: str | None,
    source: Source,
    licence: str,
    writer: NameWriter,
    progress: ProgressSink,
) -> ModelVersion:
    """Copy an OpenVINO model into a new version; `described_by` is the folder with its text and configuration files.

    Raises SourceCorrupt and UnsupportedModel.
    """
    config = TransformersConfig.read(described_by)
    text = read_text_side(described_by, config.plain_text_side())
    weights, parameters = _weights(folder)
    description = Description(
        source=source,
        licence=licence,
        format=WeightsFormat.OPENVINO_IR,
        weights=weights,
        architecture=config.architecture(parameters),
        context_tokens=config.context_tokens,
        vocabulary_size=config.vocabulary_size,
    )
    with writer.draft() as draft, storage_errors(draft):
        require_space(draft, (folder / GRAPH_DATA).stat().st_size + _SPACE_MARGIN)
        for file in (GRAPH, GRAPH_DATA):
            _copy(folder / file, draft / file, progress)
        _copy(described_by / CONFIG, draft / CONFIG, progress)
        if (described_by / assembly.LICENCE).is_file():
            _copy(described_by / assembly.LICENCE, draft / assembly.LICENCE, progress)
        assembly.write_text_side(draft, text)
        manifest = assembly.seal(draft, name, version, text, description, progress)
        return assembly.publish(writer, draft, manifest, progress)


def _weights(folder: Path) -> tuple[str, int]:
    """The element type that most weight bytes have, and the number of weights of that type."""
    graph = folder / GRAPH
    if not (folder / GRAPH_DATA).is_file():
        raise SourceCorrupt(f"{folder} has {GRAPH} but no {GRAPH_DATA}", "Copy or export the whole folder again.")
    text = graph.read_text(encoding="utf-8", errors="replace")
    if not re.match(r"\s*(<\?xml[^>]*\?>)?\s*<net\b", text) or "</net>" not in text[-200:]:
        raise SourceCorrupt(f"{graph} is not a whole OpenVINO model", "Copy or export the folder again.")
    sizes: Counter[str] = Counter()
    elements: Counter[str] = Counter()
    for kind, shape, size in _CONSTANT.findall(text):
        sizes[kind] += int(size)
        elements[kind] += prod(int(extent) for extent in shape.split(",") if extent)
    if not sizes:
        return "unknown", 0
    dominant = sizes.most_common(1)[0][0]
    return dominant, elements[dominant]


def _copy(source: Path, target: Path, progress: ProgressSink) -> None:
    total = source.stat().st_size
    with source.open("rb") as stream:
        copy_with_sha256(stream, target, lambda done: progress(Progress(Stage.COPYING, source.name, done, total)))
