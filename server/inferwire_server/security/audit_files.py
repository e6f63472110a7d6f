"""Audit records on disk: a file for each day and process in UTC, a line of JSON for each record.

Retention counts days: a file goes once its day is longer ago than that, so no record outlives it by more than a day.
"""

from __future__ import annotations

import errno
import os
import re
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import structlog

_log = structlog.get_logger("inferwire.audit")
_NAME = re.compile(r"audit-(\d{8})-\d+-\d+\.jsonl")
_LARGEST_BYTES = 64 * 1024 * 1024
_PRIVATE_FILE, _PRIVATE_FOLDER = 0o600, 0o700


class AuditFiles:
    """Written by one thread. Only this user can read what it makes."""

    def __init__(self, folder: Path, *, retention_days: int, largest_bytes: int = _LARGEST_BYTES) -> None:
        """Raises OSError when the folder cannot be used."""
        self._folder = folder
        self._retention_days = retention_days
        self._largest_bytes = largest_bytes
        self._descriptor: int | None = None
        self._day: date | None = None
        self._number = 0
        self._size = 0
        self._make_folder()
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder))

    def turn(self, wall: float) -> None:
        """Begin a new day once it has come: delete what is too old. `wall` is seconds since the epoch."""
        today = datetime.fromtimestamp(wall, UTC).date()
        if today == self._day:
            return
        self.close()
        self._day = today
        try:
            purge(self._folder, self._retention_days, today)
        except OSError as error:
            _log.warning("audit records not purged", reason=error.strerror)

    def write(self, lines: bytes, wall: float) -> None:
        """Append whole lines. Raises OSError, with none of them written."""
        self.turn(wall)
        if self._descriptor is not None and (self._size >= self._largest_bytes or _is_deleted(self._descriptor)):
            self.close()
        descriptor = self._begin() if self._descriptor is None else self._descriptor
        written = 0
        try:
            while written < len(lines):
                written += os.write(descriptor, lines[written:])
        except OSError:
            with suppress(OSError):
                os.ftruncate(descriptor, self._size)
            self.close()
            raise
        self._size += written

    def close(self) -> None:
        """The next write begins a file."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _begin(self) -> int:
        self._make_folder()
        while True:
            self._number += 1
            path = self._folder / f"audit-{self._day:%Y%m%d}-{os.getpid()}-{self._number}.jsonl"
            with suppress(FileExistsError):
                self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, _PRIVATE_FILE)
                self._size = 0
                return self._descriptor

    def _make_folder(self) -> None:
        self._folder.mkdir(mode=_PRIVATE_FOLDER, parents=True, exist_ok=True)


def _is_deleted(descriptor: int) -> bool:
    return os.fstat(descriptor).st_nlink == 0


def purge(folder: Path, retention_days: int, today: date) -> list[Path]:
    """Delete the files of days longer ago than that; those of today never. Raises OSError."""
    last_gone = today - timedelta(days=retention_days + 1)
    removed = []
    for path in sorted(folder.iterdir()):
        found = _NAME.fullmatch(path.name)
        if found and datetime.strptime(found[1], "%Y%m%d").replace(tzinfo=UTC).date() <= last_gone:
            path.unlink(missing_ok=True)
            removed.append(path)
    return removed
