"""Rewriting a GGUF file with other tensor types, one tensor in memory at a time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType, GGUFValueType, GGUFWriter, LlamaFileType, ReaderTensor
from gguf.quants import dequantize, quant_shape_to_byte_shape, quantize

from inferwire_server.models.errors import ConversionFailed
from inferwire_server.models.gguf_model import GgufModel
from inferwire_server.models.progress import Progress, ProgressSink, Stage

_BLOCK = 32
_FILE_TYPES = {
    GGMLQuantizationType.F16: LlamaFileType.MOSTLY_F16,
    GGMLQuantizationType.Q8_0: LlamaFileType.MOSTLY_Q8_0,
}


def requantise(
    model: GgufModel,
    target: Path,
    kind: GGMLQuantizationType,
    progress: ProgressSink,
    *,
    kept: frozenset[GGMLQuantizationType] = frozenset(),
) -> None:
    """Write the model with matrices of `kind` (F16 or Q8_0) and vectors of F32; the metadata is carried over.

    Tensors of a type in `kept` stay as they are.

    The result depends on the input alone, so that the same file gives the same digest everywhere. Raises
    ConversionFailed.
    """
    writer = GGUFWriter(target, model.family)
    try:
        _carry_metadata(model, writer, kind)
        plan = [
            (tensor, tensor.tensor_type if tensor.tensor_type in kept else _target_type(tensor, kind))
            for tensor in model.tensors
        ]
        for tensor, new_type in plan:
            _announce(writer, tensor, new_type)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        done, total = 0, sum(int(tensor.n_bytes) for tensor in model.tensors)
        for tensor, new_type in plan:
            writer.write_tensor_data(_convert(model, tensor, new_type))
            done += int(tensor.n_bytes)
            progress(Progress(Stage.CONVERTING, f"{model.path.name} to {kind.name}", done, total))
    finally:
        writer.close()


def _carry_metadata(model: GgufModel, writer: GGUFWriter, kind: GGMLQuantizationType) -> None:
    own = {"general.architecture", "general.file_type", "general.quantization_version"}
    for key, (value, types) in model.metadata().items():
        if key not in own:
            sub_type = types[-1] if types[0] is GGUFValueType.ARRAY and len(types) > 1 else None
            writer.add_key_value(key, value, types[0], sub_type=sub_type)
    writer.add_file_type(_FILE_TYPES[kind])
    writer.add_quantization_version(2)


def _target_type(tensor: ReaderTensor, kind: GGMLQuantizationType) -> GGMLQuantizationType:
    if len(tensor.shape) < 2:
        return GGMLQuantizationType.F32
    if kind is GGMLQuantizationType.Q8_0 and int(tensor.shape[0]) % _BLOCK:
        return GGMLQuantizationType.F16
    return kind


def _announce(writer: GGUFWriter, tensor: ReaderTensor, kind: GGMLQuantizationType) -> None:
    shape = tuple(int(size) for size in reversed(tensor.shape))
    width = {GGMLQuantizationType.F32: 4, GGMLQuantizationType.F16: 2}.get(kind)
    if width is not None:
        dtype = np.dtype(np.float32 if width == 4 else np.float16)
        writer.add_tensor_info(tensor.name, shape, dtype, int(tensor.n_elements) * width)
        return
    stored = quant_shape_to_byte_shape(shape, kind)
    writer.add_tensor_info(tensor.name, stored, np.dtype(np.uint8), int(np.prod(stored)), raw_dtype=kind)


def _convert(model: GgufModel, tensor: ReaderTensor, kind: GGMLQuantizationType) -> npt.NDArray[np.generic]:
    if tensor.tensor_type is kind:
        return np.asarray(tensor.data)
    try:
        values = dequantize(tensor.data, tensor.tensor_type)
    except NotImplementedError as error:
        problem = f"{model.path.name}: {tensor.name} is {tensor.tensor_type.name}, which cannot be converted"
        raise ConversionFailed(problem, "Export the model as F16 or Q8_0, and pull that file.") from error
    largest = np.finfo(np.float16).max if kind is not GGMLQuantizationType.F32 else np.inf
    if not np.all(np.abs(values) <= largest):
        problem = f"{model.path.name}: {tensor.name} has values that {kind.name} cannot hold"
        raise ConversionFailed(problem, "Export the model as Q8_0 with the tool that made it, and pull that file.")
    return np.asarray(quantize(values, kind))
