from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LOADED = """
import importlib.metadata, json, sys
import inferwire
for name in inferwire.__all__:
    getattr(inferwire, name)
tops = {name.partition(".")[0] for name in sys.modules}
owners = importlib.metadata.packages_distributions()
json.dump(sorted({owner for top in tops for owner in owners.get(top, [])}), sys.stdout)
"""
INSTALLED = """
import importlib.metadata, json, sys
json.dump(sorted(each.name for each in importlib.metadata.distributions()), sys.stdout)
"""
BASE = {"grpcio", "protobuf", "googleapis-common-protos", "pybreaker", "typing_extensions"}


def answer(python: Path, program: str) -> set[str]:
    done = subprocess.run([python, "-c", program], check=True, capture_output=True, text=True, cwd="/")
    return set(json.loads(done.stdout))


def test_bare_install_holds_grpc_protobuf_and_the_breaker_only(bare: Path) -> None:
    assert answer(bare, INSTALLED) == BASE | {"inferwire"}


def test_every_public_name_comes_with_the_bare_install(bare: Path) -> None:
    assert answer(bare, LOADED) <= BASE | {"inferwire"}


def test_bare_install_imports_the_stubs(bare: Path) -> None:
    program = "from inferwire.v1 import inference_pb2, inference_pb2_grpc, generation_pb2, error_pb2"

    subprocess.run([bare, "-W", "error", "-c", program], check=True, cwd="/")


def test_command_of_a_bare_install_says_which_extra_is_missing(bare: Path) -> None:
    done = subprocess.run([bare.parent / "inferwire", "serve"], check=False, capture_output=True, text=True)

    assert done.returncode == 2
    assert re.search(r"pip install .*inferwire\[(server|cpu)\]", done.stderr)
    assert "Traceback" not in done.stderr


def test_bare_install_has_no_conflicting_requirements(bare: Path) -> None:
    subprocess.run([sys.executable, "-m", "pip", "--python", str(bare), "check"], check=True, capture_output=True)
