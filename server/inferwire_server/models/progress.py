"""How a long model operation tells the outside what it does."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass


class Stage(enum.StrEnum):
    """What is being done."""

    WAITING = "waiting for another pull"
    DOWNLOADING = "downloading"
    CHECKING = "checking"
    READING = "reading"
    EXTRACTING = "extracting"
    CONVERTING = "converting"
    COPYING = "copying"
    PUBLISHING = "publishing"


@dataclass(frozen=True, slots=True)
class Progress:
    """A step of a pull or a verification."""

    stage: Stage
    subject: str
    """The file or model it is about."""
    done: int = 0
    """Bytes."""
    total: int | None = None
    """Bytes; None is unknown."""


ProgressSink = Callable[[Progress], None]
"""Called on the pulling thread; must not block for long. An exception from it ends the operation cleanly."""


def silent(_progress: Progress) -> None:
    """Take progress without showing it."""
