"""The RPCs of a stub, and what may be done with each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """One RPC of a stub."""

    path: str
    is_stream: bool
    serialize: Callable[[Any], bytes] | None
    deserialize: Callable[[bytes], Any] | None

    @property
    def is_generation(self) -> bool:
        """Whether its request has an id and an attempt."""
        return self.path in _GENERATIONS

    @property
    def is_token_stream(self) -> bool:
        """Whether its events follow the grammar of a generation's stream."""
        return self.path == _STREAM_GENERATE

    @property
    def is_repeatable(self) -> bool:
        """Whether another server may be asked too. An operator's command means one server; others are unknown."""
        return self.path in _REPEATABLE


_STREAM_GENERATE = "/inferwire.v1.InferenceService/StreamGenerate"
_GENERATIONS = frozenset({"/inferwire.v1.InferenceService/Generate", _STREAM_GENERATE})
_REPEATABLE = _GENERATIONS | {
    "/inferwire.v1.InferenceService/Tokenize",
    "/inferwire.v1.InferenceService/Detokenize",
    "/inferwire.v1.InferenceService/GetServerInfo",
    "/inferwire.v1.ModelService/ListModels",
    "/inferwire.v1.ModelService/GetModel",
    "/inferwire.v1.OperationsService/GetServerStatus",
    "/inferwire.v1.OperationsService/ListGenerations",
    "/inferwire.v1.OperationsService/WatchLoad",
}
