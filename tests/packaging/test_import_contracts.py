"""The import rules are only worth what they catch."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of both packages and of the rules, free to be spoilt."""
    for package in ("server/inferwire_server", "clients/python/src/inferwire"):
        shutil.copytree(ROOT / package, tmp_path / Path(package).name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def broken_contracts(tree: Path) -> str:
    """What import-linter says of `tree`; empty when it is content."""
    command = [str(Path(sys.executable).parent / "lint-imports"), "--no-logo", "--no-cache"]
    environment = {"PYTHONPATH": str(tree)}
    done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=False)
    assert "Contracts: " in done.stdout, f"import-linter could not run: {done.stdout}{done.stderr}"
    return done.stdout.partition("Broken contracts")[2] if done.returncode else ""


def test_the_tree_keeps_its_contracts(tree: Path) -> None:
    assert broken_contracts(tree) == ""


def test_no_folder_escapes_the_contracts_for_want_of_an_init_file(tree: Path) -> None:
    folders = {path.parent for path in tree.rglob("*.py")} - {tree}

    assert [str(folder.relative_to(tree)) for folder in folders if not (folder / "__init__.py").exists()] == []


@pytest.mark.parametrize(
    ("module", "statement", "contract"),
    [
        ("domain/errors.py", "import inferwire_server.scheduling", "Server layers"),
        ("scheduling/session.py", "import inferwire_server.rpc", "Server layers"),
        ("text/decoder_too.py", "import inferwire_server.models", "Server layers"),
        ("engines/scripted.py", "import inferwire_server.engines.openvino", "Engines know nothing"),
        ("scheduling/session.py", "import grpc", "Only rpc and app speak gRPC"),
        ("domain/errors.py", "from google.protobuf import message", "Only rpc and app speak gRPC"),
        ("rpc/inference_too.py", "import inferwire", "uses only the contract"),
        ("app/inference_server.py", "import inferwire.client", "uses only the contract"),
        ("app/inference_server.py", "import openvino_genai", "The composition root"),
        ("rpc/inference_too.py", "import openvino_genai", "Heavy things stay"),
        ("text/decoder_too.py", "import numpy", "Heavy things stay"),
        ("../inferwire/policy/breaker.py", "import inferwire.regions", "Client layers"),
        ("../inferwire/policy/breaker.py", "import asyncio", "Policies are pure"),
        ("security/account.py", "import time", "Quotas are pure"),
    ],
)
def test_a_planted_import_breaks_its_contract(tree: Path, module: str, statement: str, contract: str) -> None:
    with (tree / "inferwire_server" / module).open("a") as file:
        file.write(f"\n{statement}\n")

    assert contract in broken_contracts(tree)
