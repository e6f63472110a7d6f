"""Continuous integration installs what tests need, so their skips count as failures there."""

from __future__ import annotations

import pytest

pytest_plugins = ["pytester"]

SKIPPED = """
import pytest

@pytest.mark.{marker}
def test_it():
    pytest.skip("not here")
"""


@pytest.mark.parametrize(
    ("marker", "outcome"),
    [("system_package", {"failed": 1}), ("real_model", {"skipped": 1})],
)
def test_a_skip_fails_where_its_need_can_be_installed(
    pytester: pytest.Pytester, marker: str, outcome: dict[str, int]
) -> None:
    pytester.makepyfile(SKIPPED.format(marker=marker))

    result = pytester.runpytest("-p", "tests.forbidden_skips", "-p", "no:cacheprovider", "-W", "ignore")

    result.assert_outcomes(**outcome)
