"""What one rendering of a chat template may cost, and what each kind of step does cost."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextvars import ContextVar
from typing import Any

from jinja2 import Undefined
from jinja2.exceptions import SecurityError

_PAYMENTS_PER_LOOK = 16
_SHORT = 32
_ITEM = 8
_PIECE = 64
WHITE_SPACE = "\t\n\v\f\r \x85\xa0\u1680" + "".join(map(chr, range(0x2000, 0x200B))) + "\u2028\u2029\u202f\u205f\u3000"
"""Unicode's White_Space."""
_ALSO_SPLIT_AT = "\x1c\x1d\x1e\x1f"
_LARGEST_INTEGER_BITS = 4096
_FIELD_WITH_SPECIFICATION = re.compile(r"\{[^{}]*[:{]")
_PLAIN_CONVERSIONS = re.compile(r"[^%]*(?:%[sdrif%][^%]*)*")


class RenderingTooCostly(SecurityError):
    """The rendering would take more characters or more time than it may."""


class Budget:
    """What one rendering may still use.

    Every character that a template produces is paid for, those of intermediate values too, so memory is bounded by
    the budget; and every few payments look at the clock, so time is bounded as long as payments come often. The
    clock is that of the thread's own work: a busy machine makes no rendering too costly.
    """

    __slots__ = ("_characters", "_clock", "_payments", "_until")

    def __init__(self, *, characters: int, seconds: float, clock: Callable[[], float] = time.thread_time) -> None:
        self._characters = characters
        self._payments = 0
        self._clock = clock
        self._until = clock() + seconds

    def spend(self, characters: int = 0) -> None:
        """Pay for a step that makes so many characters; raises RenderingTooCostly before the step is taken."""
        self._characters -= 1 + characters
        if self._characters < 0:
            raise RenderingTooCostly("the rendering produces too much text")
        self._payments += 1
        if self._payments % _PAYMENTS_PER_LOOK == 0 and self._clock() > self._until:
            raise RenderingTooCostly("the rendering takes too long")

    def spend_on_text_of(self, value: Any) -> None:
        """Pay for writing a value out: a list that holds another one many times is paid for each time."""
        if isinstance(value, str):
            self.spend(len(value))
        elif isinstance(value, Mapping):
            self.spend_on_text_of(value.items())
        elif isinstance(value, Collection):
            self.spend()
            for item in value:
                self.spend_on_text_of(item)
        elif value is None or isinstance(value, int | float | Undefined):
            self.spend(_SHORT)
        else:
            raise SecurityError("only text, numbers, lists and mappings are written out")

    def spend_on_parts_of(self, value: Any) -> None:
        """Pay for looking at all of a value, as comparing it does."""
        self.spend()
        if isinstance(value, Mapping):
            value = value.values()
        if isinstance(value, Collection) and not isinstance(value, str | range):
            for item in value:
                self.spend_on_parts_of(item)

    def spend_on_copy_of(self, value: Any) -> None:
        """Pay for a copy of a text or of a list's outermost level."""
        if isinstance(value, str):
            self.spend(len(value))
        else:
            self.spend(_ITEM * len(value) if isinstance(value, Collection) else 0)

    def spend_on_splitting(self, text: str, separator: str | None = None) -> None:
        """Pay for `text.split(separator)`, where None is any white space or line end; '' is every character."""
        separators = WHITE_SPACE + _ALSO_SPLIT_AT if separator is None else [separator]
        self.spend(len(text) + _PIECE * sum(map(text.count, separators)))

    def spend_on_product(self, left: Any, right: Any) -> None:
        """Pay for `left * right`."""
        for repeated, times in ((left, right), (right, left)):
            if isinstance(repeated, str | list | tuple) and isinstance(times, int):
                self.spend(len(repeated) * max(times, 0))
        if isinstance(left, int) and isinstance(right, int):
            _refuse_large_integer(left.bit_length() + right.bit_length())

    def spend_on_power(self, base: Any, exponent: Any) -> None:
        """Pay for `base ** exponent`."""
        if isinstance(base, int) and isinstance(exponent, int):
            _refuse_large_integer(base.bit_length() * max(exponent, 0))

    def spend_on_joining(self, separator: str, items: Sequence[Any] | str) -> None:
        """Pay for `separator.join(items)`."""
        self.spend(len(separator) * len(items))
        self.spend_on_text_of(items)

    def spend_on_replacing(self, text: str, old: str, new: str) -> None:
        """Pay for `text.replace(old, new)`."""
        self.spend(len(text) + text.count(old) * len(new))

    def spend_on_conversions(self, template: str, values: Any) -> None:
        """Pay for `template % values`; widths and precisions are refused."""
        if not _PLAIN_CONVERSIONS.fullmatch(template):
            raise SecurityError("only plain %s, %d, %i, %f and %r are supported")
        self.spend(len(template))
        self.spend_on_text_of(values)

    def spend_on_fields(self, template: str, values: Sequence[Any]) -> None:
        """Pay for `template.format(*values)`; format specifications are refused."""
        if _FIELD_WITH_SPECIFICATION.search(template):
            raise SecurityError("format specifications are not supported")
        self.spend(len(template))
        for _ in range(template.count("{")):
            self.spend_on_text_of(values)


def _refuse_large_integer(bits: int) -> None:
    if bits > _LARGEST_INTEGER_BITS:
        raise RenderingTooCostly("the rendering computes with integers that are too large")


current_budget: ContextVar[Budget] = ContextVar("current_budget")
"""Of the rendering under way in this thread."""
