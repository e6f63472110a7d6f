"""Whatever is imported is declared, so that no environment works by accident."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
OWN = {"inferwire", "inferwire_server", "tests", "tools", "bench"}
BROUGHT_BY_THE_GPU_IMAGE = {"tensorrt_llm", "torch", "transformers"}
GENERATOR_ONLY = {"grpc_tools"}


def declared(*, extras: tuple[str, ...] = (), groups: tuple[str, ...] = ()) -> set[str]:
    """Names of the distributions that the bare install, these extras and these groups ask for."""
    project = PYPROJECT["project"]
    requirements = [*project["dependencies"]]
    requirements += [each for extra in extras for each in project["optional-dependencies"][extra]]
    requirements += [each for group in groups for each in PYPROJECT["dependency-groups"][group]]
    return {_normal(re.split(r"[\s<>=!~;\[]", each)[0]) for each in requirements}


def undeclared(folder: str, names: set[str]) -> set[str]:
    """Imports below `folder` that none of the distributions in `names` provides, as `module (file)`."""
    owners = packages_distributions()
    return {
        f"{module} ({path.relative_to(ROOT)})"
        for path in sorted((ROOT / folder).rglob("*.py"))
        for module in _imports(path)
        if module not in sys.stdlib_module_names | OWN
        and not names & {_normal(owner) for owner in owners.get(module, [module])}
    }


def _imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module.partition(".")[0]


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_the_client_imports_what_the_bare_install_brings() -> None:
    of_an_extra = {"prometheus_client (clients/python/src/inferwire/metrics.py)"}

    assert undeclared("clients/python/src", declared()) == of_an_extra
    assert undeclared("clients/python/src", declared(extras=("metrics",))) == set()


@pytest.mark.parametrize("part", ["domain", "scheduling", "rpc", "text", "security", "observability"])
def test_the_server_imports_what_its_extra_brings(part: str) -> None:
    assert undeclared(f"server/inferwire_server/{part}", declared(extras=("server",))) == set()


def test_engines_and_models_import_what_their_extra_brings() -> None:
    brought = declared(extras=("server", "cpu")) | {_normal(name) for name in BROUGHT_BY_THE_GPU_IMAGE}

    assert undeclared("server/inferwire_server", brought) == set()


@pytest.mark.parametrize("folder", ["tests", "tools", "bench", "docker"])
def test_tests_and_tools_import_what_the_development_lock_brings(folder: str) -> None:
    brought = declared(extras=("server", "cpu"), groups=("dev", "build"))
    given = {_normal(name) for name in BROUGHT_BY_THE_GPU_IMAGE | GENERATOR_ONLY}

    assert undeclared(folder, brought | given) == set()
