"""Settings that cannot work are refused by name before anything is started."""

from pathlib import Path
from typing import Any

import pytest
from inferwire_server.engines.openvino.options import Profile, usable_cores

from tests.engines.openvino.engines import byte_model_options

NOWHERE = Path("nowhere.gguf")


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("end_token_ids", {"end_token_ids": frozenset()}),
        ("kv_gib=0", {"kv_gib": 0}),
        ("kv_blocks=5", {"kv_blocks": 5}),
        ("max_running=0", {"max_running": 0}),
        ("max_running=256", {"max_running": 256}),
        ("threads=0", {"threads": 0}),
    ],
)
def test_a_setting_that_cannot_work_is_refused_by_name(name: str, changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=name):
        byte_model_options(NOWHERE, **changes)


def test_exact_asks_for_32_bit_floats_everywhere() -> None:
    assert byte_model_options(NOWHERE, profile=Profile.EXACT, threads=2).properties() == {
        "INFERENCE_NUM_THREADS": 2,
        "INFERENCE_PRECISION_HINT": "f32",
        "KV_CACHE_PRECISION": "f32",
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0,
    }


def test_fast_leaves_number_formats_to_openvino() -> None:
    assert byte_model_options(NOWHERE, profile=Profile.FAST).properties() == {"INFERENCE_NUM_THREADS": usable_cores()}
