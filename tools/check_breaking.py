"""Hold the protos against the recorded contract: report what would break a caller, and fail once 0.1.0 is released.

python -m tools.check_breaking
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BASELINE = Path("proto") / "baseline.binpb"
RELEASED = re.compile(r"^## v?0\.1\.0\b", re.MULTILINE)


def is_gated(changelog: str) -> bool:
    """Whether the changelog says that the contract is released."""
    return RELEASED.search(changelog) is not None


def breaking_changes(root: Path) -> list[str]:
    """What `buf breaking` finds between the recorded contract and the protos of `root`, one line each."""
    buf = Path(sys.executable).parent / "buf"
    done = subprocess.run(
        [buf, "breaking", "proto", "--against", BASELINE],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode not in (0, 100):  # 100: ran well and found something
        raise SystemExit(f"buf breaking could not run: {done.stderr.strip()}")
    return done.stdout.splitlines()


def main(root: Path = ROOT) -> int:
    """Print each breaking change; 1 when there are some and the contract is released."""
    gated = is_gated((root / "CHANGELOG.md").read_text(encoding="utf-8"))
    changes = breaking_changes(root)
    for change in changes:
        print(change)
    if changes and not gated:
        print(f"{len(changes)} breaking changes, only reported before 0.1.0; `make baseline` records the new contract")
    return 1 if changes and gated else 0


if __name__ == "__main__":
    raise SystemExit(main())
