"""How the CPU engine is set up."""

from __future__ import annotations

import enum
import os
from dataclasses import dataclass
from pathlib import Path


class Profile(enum.Enum):
    """What is traded for speed."""

    FAST = "fast"
    """OpenVINO's own choice of number formats. The batch may change a tie between tokens."""
    EXACT = "exact"
    """32-bit floats throughout: repeatable, and the same alone as in a batch; about half the speed."""


BLOCK_TOKENS = 32
"""Tokens in one KV-cache block of OpenVINO's CPU plugin."""


def usable_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenVinoOptions:
    """Facts of the model, and sizes. The defaults suit a laptop."""

    model_path: Path
    """A GGUF file or a folder with an OpenVINO model."""
    vocabulary_size: int
    max_context_tokens: int
    end_token_ids: frozenset[int]
    """Any of them ends an output."""
    profile: Profile = Profile.FAST
    kv_gib: int = 1
    """Size of the KV cache in GiB, allocated as it fills."""
    kv_blocks: int | None = None
    """Size of the KV cache in blocks of 32 tokens, instead of `kv_gib`."""
    max_running: int = 32
    """Most sequences in one batch."""
    max_batched_tokens: int = 256
    """Most tokens in one step. Smaller: running streams wait less for a new prompt. Larger: it is read sooner."""
    prefix_caching: bool = True
    """Share blocks between prompts that begin alike. There is no salt: for one tenant only."""
    threads: int | None = None
    """Inference threads, at most one a core. None: all cores, less one for the serving loop where there are three."""
    start_timeout_s: float = 300.0
    """Longest time from the start of a worker until its model is loaded and tried."""

    def __post_init__(self) -> None:
        if not self.end_token_ids:
            raise ValueError("end_token_ids: at least one is needed")
        if self.kv_gib < 1:
            raise ValueError(f"kv_gib={self.kv_gib}: at least 1 is needed")
        if self.kv_blocks is not None and self.kv_blocks < 6:
            raise ValueError(f"kv_blocks={self.kv_blocks}: at least 6 are needed")
        if not 1 <= self.max_running < self.max_batched_tokens:
            raise ValueError(
                f"max_running={self.max_running}: must be 1 to below max_batched_tokens ({self.max_batched_tokens}), "
                "for each running sequence takes one token of a step"
            )
        if self.threads is not None and self.threads < 1:
            raise ValueError(f"threads={self.threads}: at least 1 is needed")

    @property
    def has_grammars(self) -> bool:
        """Whether structured output is offered: the grammar probe takes the tokeniser from a GGUF file."""
        return self.model_path.suffix == ".gguf"

    def properties(self) -> dict[str, str | int]:
        """What the OpenVINO CPU plugin is told."""
        cores = usable_cores()
        threads = min(cores, self.threads or (cores - 1 if cores > 2 else cores))
        properties: dict[str, str | int] = {"INFERENCE_NUM_THREADS": threads}
        if self.profile is Profile.EXACT:
            properties |= {"KV_CACHE_PRECISION": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0}
        if self.profile is Profile.EXACT or threads == 1:
            # With one thread, OpenVINO 2026.4 dies of a division by zero on F16 weights in its default bf16.
            properties["INFERENCE_PRECISION_HINT"] = "f32"
        return properties
