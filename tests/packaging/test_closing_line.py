"""What CI reads last must not flatter."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import tally_tests


def report(
    folder: Path, name: str, *, tests: int, failures: int = 0, errors: int = 0, skipped: int = 0, status: int = 0
) -> str:
    path = folder / f"{name}.xml"
    counts = f'tests="{tests}" failures="{failures}" errors="{errors}" skipped="{skipped}"'
    path.write_text(f'<?xml version="1.0"?><testsuites><testsuite name="pytest" {counts}/></testsuites>')
    return f"{path}={status}"


def last_line(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().out.splitlines()[-1]


def test_reports_are_summed_in_the_last_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reports = [report(tmp_path, "fast", tests=10, skipped=1), report(tmp_path, "slow", tests=3)]

    assert tally_tests.main(reports) == 0
    assert last_line(capsys) == "12 passed, 0 failed, 1 skipped"


def test_failures_and_errors_both_fail(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert tally_tests.main([report(tmp_path, "fast", tests=10, failures=2, errors=1, status=1)]) == 1
    assert last_line(capsys) == "7 passed, 3 failed, 0 skipped"


def test_a_run_that_left_no_report_has_failed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert tally_tests.main([report(tmp_path, "fast", tests=4), f"{tmp_path}/slow.xml=2"]) == 1
    assert last_line(capsys) == "4 passed, 1 failed, 0 skipped"


def test_a_run_without_a_test_has_failed(tmp_path: Path) -> None:
    assert tally_tests.main([report(tmp_path, "fast", tests=2, skipped=2)]) == 1


def test_a_run_that_fails_without_a_failed_test_has_failed(tmp_path: Path) -> None:
    assert tally_tests.main([report(tmp_path, "fast", tests=4, status=3)]) == 1


def test_a_broken_stage_fails_a_green_suite(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert tally_tests.main(["--broken-stages", "1", report(tmp_path, "fast", tests=4)]) == 1
    assert last_line(capsys) == "4 passed, 1 failed, 0 skipped"
