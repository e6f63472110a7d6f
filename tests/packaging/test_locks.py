from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LOCKS = sorted((ROOT / "requirements").glob("*.txt"))
PIN = re.compile(r"^([a-z0-9-]+)==(\S+)", re.MULTILINE)


def pins(lock: Path) -> set[tuple[str, str]]:
    return {(name, version) for name, version in PIN.findall(lock.read_text())}


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.stem)
def test_lock_holds_no_address_and_no_path(lock: Path) -> None:
    text = lock.read_text()

    assert not re.findall(r"://|file:|--(?:extra-)?index|--find-links|@ |(?:^|\s)[./~]", text)


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.stem)
def test_every_pin_has_a_hash(lock: Path) -> None:
    requirements = lock.read_text().replace("\\\n", " ").splitlines()

    assert [line for line in requirements if "--hash=sha256:" not in line] == []


@pytest.mark.parametrize("name", ["base", "server", "cpu", "build"])
def test_narrow_locks_agree_with_the_widest(name: str) -> None:
    assert pins(ROOT / "requirements" / f"{name}.txt") <= pins(ROOT / "requirements" / "dev.txt")


def test_no_lock_brings_torch_or_an_engine_that_fetches_itself() -> None:
    names = {name for lock in LOCKS for name, _ in pins(lock)}

    assert not names & {"torch", "tensorrt-llm", "triton", "transformers", "xgrammar"}


def test_the_server_is_locked_on_protobuf_6() -> None:
    versions = {version for lock in LOCKS for name, version in pins(lock) if name == "protobuf"}

    assert {version.partition(".")[0] for version in versions} == {"6"}
