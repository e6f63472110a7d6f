"""How often a measurement is repeated."""

from __future__ import annotations

import time
from collections.abc import Iterator


def turns(most: int, *, within_s: float, least: int = 2) -> Iterator[int]:
    """Numbers of turns, up to `most`, and no more than `least` once the time is up: a busy machine gets fewer."""
    began = time.monotonic()
    for turn in range(most):
        if turn >= least and time.monotonic() - began > within_s:
            return
        yield turn
