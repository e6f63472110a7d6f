"""Where an exception came from, without its message: a library's message may quote what was said."""

from __future__ import annotations

import traceback
from collections.abc import Iterator


def without_messages(error: BaseException) -> str:
    """The stacks and types of an exception and of those that led to it, oldest first.

    Messages are left out, but for what the operating system says of a failed call.
    """
    return "".join(_lines(error, set())).rstrip()


def _lines(error: BaseException, told: set[int]) -> Iterator[str]:
    told.add(id(error))
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if cause is not None and id(cause) not in told:
        yield from _lines(cause, told)
        yield "\nwhich led to:\n\n"
    yield "Traceback (most recent call last):\n"
    yield from traceback.format_tb(error.__traceback__)
    yield f"{_name(error)}\n"
    if isinstance(error, BaseExceptionGroup):
        for part in error.exceptions:
            if id(part) not in told:
                yield "\nof which:\n\n"
                yield from _lines(part, told)


def _name(error: BaseException) -> str:
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return f"{name}: {error.strerror}" if isinstance(error, OSError) and error.strerror else name
