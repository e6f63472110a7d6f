"""Whether a model fits: weights and KV cache, from the manifest's own figures, against the memory there is."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from inferwire_server.models.errors import DoesNotFit
from inferwire_server.models.files import megabytes
from inferwire_server.models.manifest import Architecture, Manifest, WeightsFormat

KV_BLOCK_TOKENS = 32
"""Tokens of one KV block of the CPU engine."""
_EXACT = "exact"
_FLOATING = ("f16", "bf16", "f32")
_COPIES = 2
"""The CPU engine holds the weights as read and once more as packed for its kernels."""
_WORKING_BYTES = 256 << 20
"""Interpreter, runtime and activations, as measured on a model of 135 million parameters."""
_SCALE_BYTES = 8
"""Scale and zero point, f32 each, of one quantised group of the u8 KV cache."""


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """An estimate, in bytes, that was within 10 % of the measured use of the CPU engine."""

    weights: int
    kv_cache: int
    working: int
    kv_blocks: int

    @property
    def total(self) -> int:
        return self.weights + self.kv_cache + self.working


def memory_need(manifest: Manifest, *, profile: str, kv_blocks: int) -> MemoryNeed:
    """Estimate what the CPU engine needs to serve a version in a profile with so many KV blocks."""
    return MemoryNeed(
        weights=_weights_bytes(manifest),
        kv_cache=kv_blocks * kv_block_bytes(manifest, profile),
        working=_WORKING_BYTES,
        kv_blocks=kv_blocks,
    )


def kv_block_bytes(manifest: Manifest, profile: str) -> int:
    """Size of one KV block: f32 in `exact`, else f16 for floating GGUF weights and u8 for all others."""
    shape = manifest.architecture
    if profile == _EXACT:
        return _plain_block(shape, 4)
    if manifest.format is WeightsFormat.GGUF and manifest.weights in _FLOATING:
        return _plain_block(shape, 2)
    keys = shape.key_size * (KV_BLOCK_TOKENS + _SCALE_BYTES)  # quantised by channel, over the block's tokens
    values = KV_BLOCK_TOKENS * (shape.value_size + _SCALE_BYTES)  # quantised by token
    return shape.layers * shape.kv_heads * (keys + values)


def require_fit(manifest: Manifest, need: MemoryNeed, available: int | None) -> None:
    """Raise DoesNotFit, with the numbers, when the need exceeds the available bytes; None is unknown and passes."""
    if available is None or need.total <= available:
        return
    left = available - need.weights - need.working
    block = need.kv_cache // need.kv_blocks if need.kv_blocks else 0
    fitting = max(0, left // block) if block else 0
    advice = (
        f"Set at most {fitting} KV blocks ({fitting * KV_BLOCK_TOKENS} tokens in all), or give the server more memory."
        if fitting
        else "Give the server more memory, or pull a smaller or more quantised version."
    )
    raise DoesNotFit(
        f"{manifest.qualified_name} needs about {megabytes(need.total)}: weights {megabytes(need.weights)}, "
        f"KV cache {megabytes(need.kv_cache)} for {need.kv_blocks} blocks, working memory {megabytes(need.working)}; "
        f"{megabytes(available)} are available",
        advice,
    )


def available_memory(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Bytes this process may still take: the least of what the machine and its control groups leave.

    Memory that the kernel can reclaim at once counts as available. None when the system does not tell.
    """
    limits = [_machine_memory(proc), *_group_memory(proc, cgroups)]
    return min((limit for limit in limits if limit is not None), default=None)


def _weights_bytes(manifest: Manifest) -> int:
    parameters = manifest.architecture.parameters
    if manifest.weights in _FLOATING and parameters:
        return _COPIES * parameters * 4  # computed in f32, whatever they were stored in
    return _COPIES * manifest.weights_bytes


def _plain_block(shape: Architecture, width: int) -> int:
    return shape.layers * shape.kv_heads * (shape.key_size + shape.value_size) * KV_BLOCK_TOKENS * width


def _machine_memory(proc: Path) -> int | None:
    for line in _lines(proc / "meminfo"):
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None


def _group_memory(proc: Path, cgroups: Path) -> list[int | None]:
    found: list[int | None] = []
    for line in _lines(proc / "self" / "cgroup"):
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            names = ("memory.max", "memory.current", "inactive_file")
            found += [_left(folder, *names) for folder in _and_parents(cgroups, path)]
        elif "memory" in controllers.split(","):
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            found += [_left(folder, *names) for folder in _and_parents(cgroups / "memory", path)]
    return found


def _and_parents(mount: Path, path: str) -> list[Path]:
    """A group's folder and those above it; inside a container only the mount itself may be visible."""
    parts = [part for part in path.split("/") if part not in ("", "..")]
    return [mount.joinpath(*parts[:depth]) for depth in range(len(parts), -1, -1)]


def _left(folder: Path, limit_name: str, usage_name: str, reclaimable_name: str) -> int | None:
    limit, usage = _number(folder / limit_name), _number(folder / usage_name)
    if limit is None or usage is None:
        return None
    reclaimable = 0
    for line in _lines(folder / "memory.stat"):
        if line.startswith(f"{reclaimable_name} "):
            reclaimable = int(line.split()[1])
    return max(0, limit - usage + reclaimable)


def _number(path: Path) -> int | None:
    """The file's number; None when there is no file, or no limit."""
    text = "".join(_lines(path)).strip()
    return int(text) if text.isdigit() else None


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return []
