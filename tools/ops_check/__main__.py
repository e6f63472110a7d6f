"""Prove every file that runs the service: recipes, compose, manifests, rules, dashboards, policies.

python -m tools.ops_check [NAME…]     all checks, or those named
"""

from __future__ import annotations

import importlib
import sys
import time
from pathlib import Path

CHECKS = (
    "dockerfiles",
    "compose",
    "yaml_style",
    "rendering",
    "schemas",
    "server_settings",
    "probes",
    "selectors",
    "network",
    "containment",
    "scaling",
    "images",
    "scripts",
    "captions",
    "cluster_rules",
    "prometheus",
    "rule_queries",
    "dashboards",
    "checkov",
)
"""Modules of this package; each has `problems(root)`, one line a problem."""

ROOT = Path(__file__).resolve().parents[2]


def main(names: list[str]) -> int:
    """1 when there is any problem, 2 for a name that is no check."""
    if unknown := set(names) - set(CHECKS):
        print(f"no such check: {', '.join(sorted(unknown))}; there are {', '.join(CHECKS)}", file=sys.stderr)
        return 2
    total = 0
    for name in names or CHECKS:
        began = time.monotonic()
        found = importlib.import_module(f"tools.ops_check.{name}").problems(ROOT)
        total += len(found)
        print(f"{name}: {'ok' if not found else len(found)} ({time.monotonic() - began:.1f} s)", flush=True)
        for line in found:
            print(f"  {line}")
    return 1 if total else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
