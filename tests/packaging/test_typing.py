"""Types as a user's strict mypy sees them, from outside and through the wheel."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

STUBS = """
from inferwire.v1 import generation_pb2

request = generation_pb2.GenerateRequest(model="m", prompt="hi", sampling=generation_pb2.SamplingOptions(seed=7))
name: str = request.model
"""
CLIENT = """
from inferwire import AsyncClient, Client

def ask(client: Client) -> str:
    return client.generate("hi", max_output_tokens=4).text

async def listen(client: AsyncClient) -> list[str]:
    async with client.stream("hi", temperature=0.5, timeout_s=3.0) as stream:
        return [chunk.text async for chunk in stream]
"""


def check(source: str, bare: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    program = folder / "consumer.py"
    program.write_text(source)
    command = [sys.executable, "-m", "mypy", "--strict", "--python-executable", str(bare), str(program)]
    command += ["--cache-dir", str(bare.parents[1] / "mypy-cache")]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("source", [STUBS, CLIENT], ids=["stubs", "client"])
def test_a_consumer_passes_strict_mypy(bare: Path, tmp_path: Path, source: str) -> None:
    done = check(source, bare, tmp_path)

    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("source", "right", "wrong", "complaint"),
    [
        (STUBS, 'prompt="hi"', 'promt="hi"', 'did you mean "prompt"'),
        (STUBS, "seed=7", 'seed="seven"', "incompatible type"),
        (STUBS, "name: str", "name: int", "Incompatible types in assignment"),
        (CLIENT, "max_output_tokens=4", "max_tokens=4", 'Unexpected keyword argument "max_tokens"'),
        (CLIENT, "temperature=0.5", 'temperature="warm"', "incompatible type"),
        (CLIENT, "4).text", "4).txt", 'has no attribute "txt"'),
        (CLIENT, "chunk.text async for", "chunk async for", "incompatible type"),
    ],
    ids=[
        "misspelt field",
        "wrong type of field",
        "wrong type of result",
        "unknown option",
        "wrong type of option",
        "misspelt attribute",
        "chunk taken for text",
    ],
)
def test_a_mistake_does_not_type_check(
    bare: Path, tmp_path: Path, source: str, right: str, wrong: str, complaint: str
) -> None:
    done = check(source.replace(right, wrong), bare, tmp_path)

    assert done.returncode == 1
    assert complaint in done.stdout
