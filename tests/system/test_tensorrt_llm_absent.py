"""Without TensorRT-LLM the server says so at once, and nothing that is not its engine looks for it."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec

import pytest

HANG_BOUND_S = 30
"""Generous: on an idle machine it takes a fraction of a second."""
HEAVY = ("tensorrt_llm", "torch", "openvino", "openvino_genai", "numpy")

PARSERS = ("cryptography", "jwt")

pytestmark = pytest.mark.skipif(find_spec("tensorrt_llm") is not None, reason="TensorRT-LLM is installed here")


def imported_by(*arguments: str) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    """Run the command line; what came of it, and every module that it imported."""
    command = [sys.executable, "-X", "importtime", "-m", "inferwire_server", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_BOUND_S, check=False)
    lines = [line for line in done.stderr.splitlines() if line.startswith("import time:")]
    return done, [line.rpartition("|")[2].strip() for line in lines]


def test_it_exits_with_2_and_says_what_to_do() -> None:
    command = [sys.executable, "-m", "inferwire_server", "serve", "--engine", "tensorrt-llm"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_BOUND_S, check=False)
    assert done.returncode == 2
    assert "the package tensorrt-llm is not installed" in done.stderr
    assert "docker/Dockerfile.gpu" in done.stderr
    assert "--engine" in done.stderr


@pytest.mark.parametrize("arguments", [("serve", "--engine", "tensorrt-llm"), ("--help",), ("serve", "--help")])
def test_the_command_line_begins_without_what_takes_long_to_import(arguments: tuple[str, ...]) -> None:
    done, modules = imported_by(*arguments)
    assert done.returncode == (0 if "--help" in arguments else 2)
    slow = {"grpc", "google.protobuf", "uvloop", "tokenizers", "jinja2", "rich", "prometheus_client", *PARSERS, *HEAVY}
    assert "click" in modules
    assert not slow.intersection(modules)


def test_no_part_of_the_server_imports_the_engine_s_package_on_its_own() -> None:
    code = (
        "import sys, pkgutil, importlib, inferwire_server as s, inferwire\n"
        "for m in pkgutil.walk_packages(s.__path__, 'inferwire_server.'):\n"
        "    if not m.name.startswith('inferwire_server.engines.openvino') and '__main__' not in m.name:\n"
        "        importlib.import_module(m.name)\n"
        "print(*sorted({'tensorrt_llm', 'torch'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == []
