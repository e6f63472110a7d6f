"""A caller's stubs must go on working: what would break them is reported, and refused once 0.1.0 is out."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tools import check_breaking

ROOT = Path(__file__).resolve().parents[2]
UNRELEASED = "# Changelog\n\n## Unreleased\n"
RELEASED = f"{UNRELEASED}\n## 0.1.0 (2027-01-15)\n"


@pytest.fixture
def contract(tmp_path: Path) -> Path:
    """A copy of the protos, of their rules and of what is recorded, free to be changed."""
    shutil.copytree(ROOT / "proto", tmp_path / "proto")
    shutil.copy(ROOT / "buf.yaml", tmp_path)
    (tmp_path / "CHANGELOG.md").write_text(UNRELEASED)
    return tmp_path


def renumber_the_prompt(contract: Path) -> None:
    proto = contract / "proto" / "inferwire" / "v1" / "generation.proto"
    text = proto.read_text()
    assert "string prompt = 2;" in text
    proto.write_text(text.replace("string prompt = 2;", "string prompt = 99;"))


def test_the_recorded_contract_is_kept(contract: Path) -> None:
    assert check_breaking.breaking_changes(contract) == []


def test_a_renumbered_field_is_reported(contract: Path, capsys: pytest.CaptureFixture[str]) -> None:
    renumber_the_prompt(contract)

    assert check_breaking.main(contract) == 0
    assert "generation.proto" in capsys.readouterr().out


def test_a_renumbered_field_is_refused_once_released(contract: Path) -> None:
    renumber_the_prompt(contract)
    (contract / "CHANGELOG.md").write_text(RELEASED)

    assert check_breaking.main(contract) == 1


def test_a_new_field_is_no_breaking_change(contract: Path) -> None:
    proto = contract / "proto" / "inferwire" / "v1" / "operations.proto"
    proto.write_text(proto.read_text() + "\n// New.\nmessage Addition {\n  // New.\n  string text = 1;\n}\n")

    assert check_breaking.breaking_changes(contract) == []


@pytest.mark.parametrize(("changelog", "gated"), [(UNRELEASED, False), (RELEASED, True)], ids=["before", "after"])
def test_the_changelog_says_when_the_contract_binds(changelog: str, gated: bool) -> None:
    assert check_breaking.is_gated(changelog) is gated
