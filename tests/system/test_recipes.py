"""The commands of README and docs/operating.md, run as written over a server process; only address and model differ."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.server_process import ServerProcess, server_process

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("README.md", "docs/operating.md")
TOOLS = ("grpcurl", "buf", "k6")
ENDS_THE_SERVER = "OperationsService/Drain"
EXAMPLE = re.compile(r"^```python\n(.*?)^```\n\n^```text\n(.*?)^```", re.DOTALL | re.MULTILINE)


def recipes() -> list[str]:
    """Every command of the pages that starts with one of the tools; the one that ends the server comes last."""
    blocks = [
        block
        for page in PAGES
        for block in re.findall(r"^```console\n(.*?)^```", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE)
    ]
    lines = [line for block in blocks for line in block.splitlines() if line.split(" ")[0] in TOOLS]
    return sorted(lines, key=lambda line: ENDS_THE_SERVER in line)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server() -> AsyncIterator[ServerProcess]:
    async with server_process() as running:
        yield running


async def run(recipe: str, server: ServerProcess, grpcurl: Path) -> tuple[int | None, str]:
    """Exit status and what it printed."""
    program, *arguments = shlex.split(
        recipe.replace("127.0.0.1:50051", server.address).replace("smollm2-135m-instruct", "scripted")
    )
    path = grpcurl if program == "grpcurl" else Path(sys.executable).parent / program
    environment = os.environ | {"ADDRESS": server.address, "MODEL": "scripted", "K6_NO_USAGE_REPORT": "true"}
    process = await asyncio.create_subprocess_exec(
        path, *arguments, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    async with asyncio.timeout(55):
        printed, said = await process.communicate()
    return process.returncode, printed.decode() + said.decode()


def test_there_are_recipes_of_every_tool() -> None:
    assert {recipe.split(" ")[0] for recipe in recipes()} == set(TOOLS)
    assert ENDS_THE_SERVER in recipes()[-1]


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("recipe", recipes())
async def test_a_recipe_runs_as_written(recipe: str, server: ServerProcess, grpcurl: Path) -> None:
    status, printed = await run(recipe, server, grpcurl)

    assert status == 0, printed
    assert printed.strip()
    if "/Generate" in recipe:
        assert json.loads(printed)["outputs"][0]["text"]
    if "StreamGenerate" in recipe:
        assert '"started"' in printed
        assert '"completed"' in printed
    if recipe.startswith("k6"):
        assert "checks_succeeded...: 100.00%" in re.sub(r"\.{3,}", "...", printed)
    if ENDS_THE_SERVER in recipe:
        assert await server.until_exit() == 0


@pytest.mark.slow
async def test_a_missed_threshold_fails_the_load(grpcurl: Path) -> None:
    async with server_process(engine_options={"step_base_s": 3.0}) as slow:
        status, printed = await run(
            "k6 run --env CALLERS=1 --env DURATION=1s --env OUTPUT_TOKENS=1 clients/k6/generate.js", slow, grpcurl
        )

    assert status not in (0, None), printed
    assert "thresholds on metrics 'first_token' have been crossed" in printed


def test_the_worked_example_gives_the_figures_that_the_page_shows() -> None:
    found = EXAMPLE.search((ROOT / "docs" / "operating.md").read_text())
    assert found is not None

    done = subprocess.run([sys.executable, "-c", found[1]], capture_output=True, text=True, check=True)

    assert done.stdout == found[2]
