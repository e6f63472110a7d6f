"""Who calls when, with what: fixed by the seed before the first call, so that a slow server cannot slow its callers."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass

from bench.simulation.workload import geometric, seeded

_PRINTABLE = bytes(32 + byte % 95 for byte in range(256))
"""Prompts are token ids 32 to 126: in every vocabulary, and text in those made of bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shot:
    """One call to come."""

    number: int
    at_s: float
    """Intended arrival, after the start of the run."""
    prompt_tokens: int
    deadline_s: float
    leaves_after_tokens: int | None
    """The reader hangs up after so many; the server is not told. None: it reads to the end."""

    def prompt(self, seed: int) -> bytes:
        """Token ids of the prompt, the same for the same seed and number and for no other."""
        rng = random.Random(f"{seed}/{self.number}")
        return rng.randbytes(self.prompt_tokens).translate(_PRINTABLE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """Open-loop arrivals: Poisson, or bursts of `burst_size` at once at the same mean rate."""

    seed: int
    rate: float
    """Calls a second."""
    duration_s: float
    burst_size: int = 1
    burst_spacing_s: float = 0.0
    """Between the calls of a burst."""
    prompt_tokens: tuple[int, int]
    deadline_s: tuple[float, float]
    mean_output_tokens: float | None = None
    """Of a geometric distribution of where readers hang up; None: they never do."""

    def shots(self) -> list[Shot]:
        rng = seeded(self.seed)
        return [
            Shot(
                number=number,
                at_s=at_s,
                prompt_tokens=rng.randint(*self.prompt_tokens),
                deadline_s=rng.uniform(*self.deadline_s),
                leaves_after_tokens=None
                if self.mean_output_tokens is None
                else geometric(rng, self.mean_output_tokens),
            )
            for number, at_s in enumerate(sorted(self._arrivals(seeded(self.seed + 1))))
        ]

    def _arrivals(self, rng: random.Random) -> Iterator[float]:
        if self.burst_size == 1:
            at_s = rng.expovariate(self.rate)
            while at_s < self.duration_s:
                yield at_s
                at_s += rng.expovariate(self.rate)
            return
        period_s = self.burst_size / self.rate
        for burst in range(math.ceil(self.duration_s / period_s)):
            for place in range(self.burst_size):
                yield burst * period_s + place * self.burst_spacing_s
