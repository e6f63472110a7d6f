"""Files that somebody else replaces: read again while the server runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

import structlog

T = TypeVar("T")
_log = structlog.get_logger("inferwire.security")


class WatchedFiles(Generic[T]):
    """What some files say together. Files that cannot be used change nothing and are tried again at each look: the
    warning and `failed` come once for each such state of them."""

    interval_s = 0.5

    def __init__(
        self, kind: str, paths: Sequence[Path], load: Callable[[Sequence[bytes]], T], failed: Callable[[str], None]
    ) -> None:
        """`load` turns their contents into a value; the message of its ValueErrors may be logged.

        Raises OSError, or ValueError for whatever else goes wrong.
        """
        self._kind = kind
        self._paths = tuple(paths)
        self._load = load
        self._failed = failed
        self._in_use: tuple[bytes, ...] | None = self._read()
        self._refused: object = None
        try:
            self.current = load(self._in_use)
        except Exception as error:  # noqa: BLE001 whatever a file does to its reader, it is a wrong value
            raise ValueError(reason_not_to_use(error)) from None

    def refresh(self) -> bool:
        """Whether there is something new. Blocks, so not for the serving loop."""
        contents = None
        try:
            contents = self._read()
            if contents == self._in_use:
                return False
            self.current = self._load(contents)
        except Exception as error:  # noqa: BLE001 whatever a file does to its reader, the next one is read
            self._keep_old(contents, reason_not_to_use(error))
            return False
        self._in_use, self._refused = contents, None
        _log.info("reloaded", kind=self._kind)
        return True

    def _read(self) -> tuple[bytes, ...]:
        return tuple(path.read_bytes() for path in self._paths)

    def _keep_old(self, contents: tuple[bytes, ...] | None, reason: str) -> None:
        self._in_use = None
        if self._refused != (contents, reason):
            self._refused = (contents, reason)
            _log.warning("not reloaded", kind=self._kind, files=[str(path) for path in self._paths], reason=reason)
            self._failed(self._kind)


def reason_not_to_use(error: Exception) -> str:
    """For the log: an error that nobody expected may quote what it was given, so that only its kind is told."""
    if isinstance(error, OSError):
        return f"cannot be read: {error.strerror or error}"
    return str(error) if isinstance(error, ValueError) else f"cannot be used: {type(error).__name__}"
