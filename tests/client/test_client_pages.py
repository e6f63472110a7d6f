"""The client's pages say what is so."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tools.client_knobs import PAGE, with_table

PAGES = (PAGE, PAGE.parent / "testing-clients.md")


def blocks(page: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)


def test_every_knob_stands_in_the_guide_with_its_default() -> None:
    page = PAGE.read_text(encoding="utf-8")

    assert with_table(page) == page, "run python -m tools.client_knobs --write"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_example_is_python_and_every_name_it_imports_is_there(page: Path) -> None:
    for block in blocks(page):
        for statement in ast.walk(ast.parse(block)):
            if isinstance(statement, ast.ImportFrom) and (statement.module or "").startswith("inferwire"):
                module = __import__(str(statement.module), fromlist=["_"])
                assert [one.name for one in statement.names if not hasattr(module, one.name)] == []


async def test_the_example_of_a_lost_region_runs() -> None:
    [example] = [block for block in blocks(PAGES[1]) if "test_a_lost_region_is_not_seen" in block]
    names: dict[str, object] = {}
    exec(compile(example, "testing-clients.md", "exec"), names)  # noqa: S102 our own page

    await names["test_a_lost_region_is_not_seen"]()  # type: ignore[operator]
