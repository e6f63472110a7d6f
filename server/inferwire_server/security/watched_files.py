"""Files that somebody else replaces: read again while the server runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

import structlog

T = TypeVar("T")
_log = structlog.get_logger("inferwire.security")


class WatchedFiles(Generic[T]):
    """What some files say together. Files that cannot be used change nothing: the warning and `failed` come once for
    each such state of them."""

    interval_s = 0.5

    def __init__(
        self, kind: str, paths: Sequence[Path], load: Callable[[Sequence[bytes]], T], failed: Callable[[str], None]
    ) -> None:
        """`load` turns their contents into a value and raises ValueError. Raises OSError and ValueError itself."""
        self._kind = kind
        self._paths = tuple(paths)
        self._load = load
        self._failed = failed
        contents = self._read()
        self._seen: object = contents
        self.current = load(contents)

    def refresh(self) -> bool:
        """Whether there is something new. Blocks, so not for the serving loop."""
        try:
            contents = self._read()
        except OSError as error:
            if self._seen != error.errno:
                self._seen = error.errno
                self._keep_old(f"cannot be read: {error.strerror}")
            return False
        if contents == self._seen:
            return False
        self._seen = contents
        try:
            self.current = self._load(contents)
        except ValueError as error:
            self._keep_old(str(error))
            return False
        _log.info("reloaded", kind=self._kind)
        return True

    def _read(self) -> tuple[bytes, ...]:
        return tuple(path.read_bytes() for path in self._paths)

    def _keep_old(self, reason: str) -> None:
        _log.warning("not reloaded", kind=self._kind, files=[str(path) for path in self._paths], reason=reason)
        self._failed(self._kind)
