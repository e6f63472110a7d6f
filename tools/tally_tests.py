"""Sum up pytest's reports in one closing line, and fail when anything failed.

python -m tools.tally_tests [--broken-stages N] REPORT.xml=EXIT_STATUS …
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

COUNTED = ("tests", "failures", "errors", "skipped")


def tally(report: Path, exit_status: int) -> Counter[str]:
    """Count one run's tests; one without a report, a test that ran, or a reason to fail counts as failed."""
    try:
        suites = list(ElementTree.parse(report).iter("testsuite"))  # noqa: S314 - written by our own pytest
    except (OSError, ElementTree.ParseError) as unreadable:
        print(f"{report}: no report of a finished test run ({unreadable})")
        return Counter(failed=1)
    tests, failures, errors, skipped = (sum(int(suite.get(key, 0)) for suite in suites) for key in COUNTED)
    failed = failures + errors
    passed = tests - failed - skipped
    if failed == 0 and (exit_status != 0 or passed == 0):
        print(f"{report}: pytest exited {exit_status} after {passed} passed tests")
        failed = 1
    return Counter(passed=passed, failed=failed, skipped=skipped)


def main(arguments: list[str]) -> int:
    """Print the closing line; 1 when a test or a stage failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--broken-stages", type=int, default=0, help="failed stages that have no report of their own")
    parser.add_argument("runs", nargs="+", metavar="REPORT=EXIT_STATUS")
    options = parser.parse_args(arguments)

    total = Counter(failed=options.broken_stages)
    for run in options.runs:
        report, _, exit_status = run.rpartition("=")
        total += tally(Path(report), int(exit_status))
    print(f"{total['passed']} passed, {total['failed']} failed, {total['skipped']} skipped")
    return 1 if total["failed"] else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
