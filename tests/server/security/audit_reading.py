"""What is in a folder of audit records."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from inferwire_server.security.audit_files import AuditFiles


class Counts:
    """An observer that counts."""

    def __init__(self) -> None:
        self.num_written = self.num_overflowed = self.num_failed = 0

    def written(self, count: int) -> None:
        self.num_written += count

    def overflowed(self) -> None:
        self.num_overflowed += 1

    def failed(self, count: int) -> None:
        self.num_failed += count


def records(folder: Path) -> list[dict[str, Any]]:
    """All of them, oldest first."""
    files = sorted(folder.glob("audit-*.jsonl"), key=lambda path: path.stat().st_mtime_ns)
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def files_of(folder: Path, **options: Any) -> AuditFiles:
    """Kept for thirty days unless told otherwise."""
    return AuditFiles(folder, **({"retention_days": 30} | options))
