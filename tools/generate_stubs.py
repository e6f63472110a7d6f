"""Compile proto/inferwire/v1 into clients/python/src/inferwire/v1, or check that the result is up to date.

Runs under the interpreter of `.venv-stubs` (grpcio-tools pins protobuf below what the server uses):

    .venv-stubs/bin/python tools/generate_stubs.py [--check]
"""

from __future__ import annotations

import filecmp
import os
import shutil
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROTO = ROOT / "proto"
OUT = ROOT / "clients" / "python" / "src"
PACKAGE = Path("inferwire") / "v1"


def compile_into(folder: Path) -> None:
    """Write messages, services and their type stubs below `folder`."""
    from grpc_tools import protoc

    well_known = Path(protoc.__file__).parent / "_proto"
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    sources = sorted((PROTO / PACKAGE).glob("*.proto"))
    arguments = ["protoc", f"-I{PROTO}", f"-I{well_known}"]
    arguments += [f"--{kind}_out={folder}" for kind in ("python", "grpc_python")]
    arguments += [f"--{kind}_out=quiet:{folder}" for kind in ("mypy", "mypy_grpc")]
    if protoc.main([*arguments, *map(str, sources)]) != 0:
        raise SystemExit("protoc failed")
    for source in sources:
        if "\nservice " not in source.read_text(encoding="utf-8"):
            for suffix in ("_pb2_grpc.py", "_pb2_grpc.pyi"):
                (folder / PACKAGE / (source.stem + suffix)).unlink(missing_ok=True)
    (folder / PACKAGE / "__init__.py").write_text('"""Generated from proto/inferwire/v1; do not edit."""\n')


def main(arguments: list[str]) -> int:
    """Generate, or with `--check` print what is stale and return 1."""
    with tempfile.TemporaryDirectory() as scratch:
        fresh = Path(scratch)
        compile_into(fresh)
        target = OUT / PACKAGE
        if arguments == ["--check"]:
            names = {path.name for folder in (fresh / PACKAGE, target) for path in folder.glob("*.py*")}
            _, different, missing = filecmp.cmpfiles(fresh / PACKAGE, target, sorted(names), shallow=False)
            for name in sorted(different + missing):
                print(f"stale: {PACKAGE / name} (run `make stubs`)")
            return 1 if different or missing else 0
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(fresh / PACKAGE, target)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
