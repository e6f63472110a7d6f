"""A model that cannot fit is refused before it is loaded, with the numbers."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from inferwire_server.models.errors import DoesNotFit
from inferwire_server.models.manifest import Manifest, WeightsFormat
from inferwire_server.models.memory import available_memory, kv_block_bytes, memory_need, require_fit

from tests.server.models.stored import small_manifest

GIB = 1 << 30


def _manifest(weights: str, kind: WeightsFormat = WeightsFormat.GGUF) -> Manifest:
    return dataclasses.replace(small_manifest(), weights=weights, format=kind)


@pytest.mark.parametrize(
    ("weights", "kind", "profile", "size"),
    [
        ("f16", WeightsFormat.GGUF, "exact", 1_474_560),
        ("f16", WeightsFormat.GGUF, "fast", 737_280),
        ("q8_0", WeightsFormat.GGUF, "fast", 437_760),
        ("u8", WeightsFormat.OPENVINO_IR, "fast", 437_760),
        ("u8", WeightsFormat.OPENVINO_IR, "exact", 1_474_560),
    ],
)
def test_a_kv_block_has_the_size_that_the_engine_reports(
    weights: str, kind: WeightsFormat, profile: str, size: int
) -> None:
    """Sizes as read from openvino-genai 2026.4.1 for SmolLM2-135M."""
    assert kv_block_bytes(_manifest(weights, kind), profile) == size


def test_a_model_that_fits_passes() -> None:
    need = memory_need(_manifest("f16"), profile="exact", kv_blocks=200)

    require_fit(_manifest("f16"), need, need.total)


def test_an_unknown_amount_of_memory_passes() -> None:
    require_fit(_manifest("f16"), memory_need(_manifest("f16"), profile="exact", kv_blocks=10**9), None)


def test_a_refusal_names_each_number_and_the_blocks_that_fit() -> None:
    need = memory_need(_manifest("f16"), profile="exact", kv_blocks=2000)

    with pytest.raises(DoesNotFit) as refused:
        require_fit(_manifest("f16"), need, 2 * GIB)

    for words in ("weights 1,080 MB", "KV cache 2,949 MB for 2000 blocks", "2,147 MB are available"):
        assert words in refused.value.problem
    assert "at most 541 KV blocks (17312 tokens in all)" in refused.value.advice


def test_weights_alone_too_large_ask_for_another_model() -> None:
    need = memory_need(_manifest("f16"), profile="exact", kv_blocks=1)

    with pytest.raises(DoesNotFit) as refused:
        require_fit(_manifest("f16"), need, GIB)

    assert "more memory" in refused.value.advice


@given(blocks=st.integers(1, 10_000), available=st.integers(0, 1 << 36))
def test_the_advised_number_of_blocks_is_the_largest_that_fits(blocks: int, available: int) -> None:
    manifest = _manifest("q8_0")
    try:
        require_fit(manifest, memory_need(manifest, profile="fast", kv_blocks=blocks), available)
    except DoesNotFit as refused:
        advised = re.search(r"at most (\d+) KV blocks", refused.advice)
    else:
        return
    if advised is not None:
        fitting = int(advised[1])
        assert memory_need(manifest, profile="fast", kv_blocks=fitting).total <= available
        assert memory_need(manifest, profile="fast", kv_blocks=fitting + 1).total > available


def _write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


MEMINFO = "MemTotal: 32000000 kB\nMemFree: 1 kB\nMemAvailable: 16000000 kB\n"


def test_without_groups_the_machines_memory_counts(tmp_path: Path) -> None:
    proc = _write(tmp_path / "proc", {"meminfo": MEMINFO})

    assert available_memory(proc, tmp_path / "none") == 16_000_000 * 1024


def test_a_containers_limit_counts_less_what_is_used_and_cannot_be_reclaimed(tmp_path: Path) -> None:
    proc = _write(tmp_path / "proc", {"meminfo": MEMINFO, "self/cgroup": "0::/\n"})
    group = {
        "memory.max": f"{4 * GIB}\n",
        "memory.current": f"{GIB}\n",
        "memory.stat": f"anon 1\ninactive_file {GIB // 2}\n",
    }

    assert available_memory(proc, _write(tmp_path / "cgroup", group)) == 3 * GIB + GIB // 2


def test_the_tightest_group_on_the_path_counts(tmp_path: Path) -> None:
    proc = _write(tmp_path / "proc", {"meminfo": MEMINFO, "self/cgroup": "0::/slice/job\n"})
    groups = {
        "slice/memory.max": f"{2 * GIB}",
        "slice/memory.current": "0",
        "slice/job/memory.max": "max",
        "slice/job/memory.current": "0",
    }

    assert available_memory(proc, _write(tmp_path / "cgroup", groups)) == 2 * GIB


def test_limits_of_the_older_group_layout_count(tmp_path: Path) -> None:
    proc = _write(tmp_path / "proc", {"meminfo": MEMINFO, "self/cgroup": "4:memory:/job\n0::/\n"})
    group = {"memory/job/memory.limit_in_bytes": f"{GIB}", "memory/job/memory.usage_in_bytes": f"{GIB // 4}"}

    assert available_memory(proc, _write(tmp_path / "cgroup", group)) == GIB - GIB // 4


def test_this_machine_tells() -> None:
    available = available_memory()

    assert available is not None
    assert available > 0
