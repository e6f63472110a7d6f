"""Types as a user's strict mypy sees them, from outside and through the wheel."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

WELL_TYPED = """
from inferwire.v1 import generation_pb2

request = generation_pb2.GenerateRequest(model="m", prompt="hi", sampling=generation_pb2.SamplingOptions(seed=7))
name: str = request.model
"""


def check(source: str, bare: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    program = folder / "consumer.py"
    program.write_text(source)
    command = [sys.executable, "-m", "mypy", "--strict", "--no-incremental", "--python-executable", str(bare)]
    return subprocess.run([*command, str(program)], cwd=folder, capture_output=True, text=True, check=False)


def test_a_consumer_of_the_stubs_passes_strict_mypy(bare: Path, tmp_path: Path) -> None:
    done = check(WELL_TYPED, bare, tmp_path)

    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("right", "wrong", "complaint"),
    [
        ('prompt="hi"', 'promt="hi"', 'did you mean "prompt"'),
        ("seed=7", 'seed="seven"', "incompatible type"),
        ("name: str", "name: int", "Incompatible types in assignment"),
    ],
    ids=["misspelt field", "wrong type of field", "wrong type of result"],
)
def test_a_mistake_in_a_request_does_not_type_check(
    bare: Path, tmp_path: Path, right: str, wrong: str, complaint: str
) -> None:
    done = check(WELL_TYPED.replace(right, wrong), bare, tmp_path)

    assert done.returncode == 1
    assert complaint in done.stdout
