"""What a GGUF file says of itself: architecture, limits, tensor types and the raw metadata."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from gguf import GGMLQuantizationType, GGUFReader, ReaderTensor

from inferwire_server.models.errors import SourceCorrupt, UnsupportedModel
from inferwire_server.models.manifest import Architecture

SUPPORTED_ARCHITECTURES = ("llama", "qwen2", "qwen3")
"""What the CPU engine reads from GGUF directly."""
EXACT_TYPES = frozenset(
    {
        GGMLQuantizationType.F32,
        GGMLQuantizationType.F16,
        GGMLQuantizationType.Q8_0,
        GGMLQuantizationType.Q4_0,
    }
)
"""Tensor types that the CPU engine reads without loss; it rounds the block minimum of the asymmetric ones."""


class GgufModel:
    """An open GGUF file. Opening maps the file and reads its metadata, not its weights."""

    def __init__(self, path: Path, reader: GGUFReader) -> None:
        self.path = path
        self._reader = reader

    @classmethod
    def open(cls, path: Path) -> GgufModel:
        """Open a file. Raises SourceCorrupt, or UnsupportedModel for an architecture that no engine here reads."""
        try:
            model = cls(path, GGUFReader(path))
        except (ValueError, IndexError, KeyError, TypeError, OverflowError) as error:
            raise _corrupt(path, str(error)) from error
        model._refuse_unsupported()
        return model

    @property
    def tensors(self) -> list[ReaderTensor]:
        """All tensors, their data mapped from the file."""
        return self._reader.tensors

    def optional(self, key: str) -> Any:
        """A metadata value; None when it is absent."""
        entry = self._reader.fields.get(key)
        return None if entry is None else entry.contents()

    def required(self, key: str) -> Any:
        """A metadata value. Raises SourceCorrupt when it is absent."""
        value = self.optional(key)
        if value is None:
            raise _corrupt(self.path, f"its metadata lacks {key}")
        return value

    def metadata(self) -> dict[str, tuple[Any, list[Any]]]:
        """Every metadata value with its GGUF types, less the reader's own header fields."""
        return {
            key: (entry.contents(), list(entry.types))
            for key, entry in self._reader.fields.items()
            if not key.startswith("GGUF.")
        }

    @property
    def family(self) -> str:
        """The architecture's GGUF name."""
        return str(self.required("general.architecture"))

    @property
    def context_tokens(self) -> int:
        """Longest sequence the model was made for."""
        return int(self.required(f"{self.family}.context_length"))

    @property
    def vocabulary_size(self) -> int:
        """Rows of the embedding."""
        for tensor in self.tensors:
            if tensor.name == "token_embd.weight":
                return int(tensor.shape[1])
        raise _corrupt(self.path, "it has no token_embd.weight")

    def architecture(self) -> Architecture:
        """The facts that size its memory."""
        family = self.family
        heads = int(self.required(f"{family}.attention.head_count"))
        head_size = int(self.required(f"{family}.embedding_length")) // heads
        return Architecture(
            family=family,
            layers=int(self.required(f"{family}.block_count")),
            attention_heads=heads,
            kv_heads=int(self.optional(f"{family}.attention.head_count_kv") or heads),
            key_size=int(self.optional(f"{family}.attention.key_length") or head_size),
            value_size=int(self.optional(f"{family}.attention.value_length") or head_size),
            parameters=sum(int(tensor.n_elements) for tensor in self.tensors),
        )

    def weights_label(self) -> str:
        """The type that most matrices have, as in `q8_0`."""
        matrices = Counter(tensor.tensor_type.name for tensor in self.tensors if len(tensor.shape) > 1)
        return matrices.most_common(1)[0][0].lower() if matrices else "f32"

    def inexact_types(self) -> set[GGMLQuantizationType]:
        """Tensor types that the CPU engine would not read exactly."""
        return {tensor.tensor_type for tensor in self.tensors} - EXACT_TYPES

    def _refuse_unsupported(self) -> None:
        if self.family not in SUPPORTED_ARCHITECTURES:
            raise UnsupportedModel(
                f"{self.path.name} has the architecture {self.family!r}",
                f"GGUF is supported for {', '.join(SUPPORTED_ARCHITECTURES)}; convert other models to an "
                "OpenVINO folder and pull that.",
            )
        if int(self.optional("split.count") or 1) > 1:
            raise UnsupportedModel(
                f"{self.path.name} is one part of a model split over several files",
                "Merge the parts into one GGUF file first, and pull that.",
            )


def _corrupt(path: Path, detail: str) -> SourceCorrupt:
    return SourceCorrupt(f"{path.name} is not a readable GGUF model: {detail}", "Fetch or export the file again.")
