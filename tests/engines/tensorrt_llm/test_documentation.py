"""docs/engines.md says what the code does."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest
from inferwire_server.engines.tensorrt_llm.options import Options

from tests.engines.tensorrt_llm.planted_faults import FAULTS

_TEXT = (Path(__file__).parents[3] / "docs" / "engines.md").read_text()
_PART = _TEXT.partition("\n## TensorRT-LLM\n")[2].partition("\n## ")[0]
_ROWS = {
    cells[0].strip("` "): [cell.strip("` ") for cell in cells[1:]]
    for line in _PART.splitlines()
    if line.startswith("| `") and len(cells := line.strip("| ").split(" | ")) == 4
}


def _as_written(default: object) -> str:
    if default is None:
        return "unset"
    if isinstance(default, bool):
        return str(default).lower()
    if isinstance(default, float):
        return f"{default:g}"
    return str(default) or "none"


@pytest.mark.parametrize("option", dataclasses.fields(Options), ids=lambda option: str(option.name))
def test_every_option_is_documented_as_it_is(option: dataclasses.Field[object]) -> None:
    default, maps_to, meaning = _ROWS[option.name]
    assert default == _as_written(option.default)
    assert maps_to == (option.metadata["maps_to"] or "–")
    assert meaning


def test_no_documented_option_is_missing() -> None:
    assert {name for name in _ROWS if "." not in name} <= {option.name for option in dataclasses.fields(Options)}


def test_it_says_plainly_what_has_run_on_real_hardware() -> None:
    section = _PART.partition("### What has run on real hardware")[2].partition("\n### ")[0]
    assert section.strip().startswith("**Nothing yet.**")
    (count,) = re.findall(r"(\d+) faults", section)
    assert int(count) == len(FAULTS)
