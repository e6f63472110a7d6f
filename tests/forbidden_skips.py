"""Where everything a test needs is to be had, a skip hides a hole. Switched on by `-p tests.forbidden_skips`."""

from __future__ import annotations

from collections.abc import Generator

import pytest


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Turn the skip of a test whose system package can be installed into a failure."""
    report = yield
    if report.skipped and item.get_closest_marker("system_package"):
        report.outcome = "failed"
        report.longrepr = f"must not be skipped here: {report.longreprtext}"
    return report
