"""Every row of the fault matrix has tests, and they are there."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.chaos.__main__ import PAGE, with_table
from tests.chaos.rows import ROWS, Row

TESTS = Path(__file__).parents[1]
NUMBERS = [*map(str, range(1, 14)), "13b", *map(str, range(14, 23))]


def test_no_row_is_left_out() -> None:
    assert [row.number for row in ROWS] == NUMBERS


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.number)
def test_the_tests_of_a_row_exist(row: Row) -> None:
    assert row.tests
    for place in row.tests:
        file, _, name = place.partition("::")
        tree = ast.parse((TESTS / file).read_text(encoding="utf-8"))
        functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
        assert not name or name in functions, place


def test_the_page_has_a_line_for_every_row() -> None:
    page = PAGE.read_text(encoding="utf-8")

    assert [number for number in NUMBERS if f"\n| {number} |" not in page] == []
    assert with_table(page, "| a table |") != page
