"""How long outputs turn out to be, learnt from those that ended: an empirical survival curve that slowly forgets."""

from __future__ import annotations

from bisect import bisect_right

MEMORY = 0.995
"""Weight of an observation relative to the next one: the last few hundred outputs rule."""
EXACT_UP_TO = 16
STEPS_PER_DOUBLING = 4
LARGEST_DOUBLING = 21


def _edges() -> list[float]:
    exact = [float(length) for length in range(EXACT_UP_TO)]
    first_doubling = EXACT_UP_TO.bit_length() - 1
    steps = (LARGEST_DOUBLING - first_doubling) * STEPS_PER_DOUBLING
    return exact + [2.0 ** (first_doubling + step / STEPS_PER_DOUBLING) for step in range(steps + 1)]


class OutputLengths:
    """Lengths in tokens, whatever ended the output: a cancelled one frees its slot as well."""

    def __init__(self) -> None:
        self._edges = _edges()
        self._weights = [0.0] * (len(self._edges) - 1)
        self._next_weight = 1.0
        self._observed = 0
        self._survival = [1.0] * len(self._edges)
        self._mean = 0.0
        self._is_outdated = False

    @property
    def observed(self) -> int:
        return self._observed

    def observe(self, tokens: int) -> None:
        """An output ended with so many tokens."""
        # A length of n falls into the bucket that ends at n, so that survival reaches its new value at n itself.
        bucket = min(max(bisect_right(self._edges, tokens - 0.5) - 1, 0), len(self._weights) - 1)
        self._weights[bucket] += self._next_weight
        self._next_weight /= MEMORY
        self._observed += 1
        self._is_outdated = True
        if self._next_weight > 1e12:
            self._weights = [weight / self._next_weight for weight in self._weights]
            self._next_weight = 1.0

    def mean(self) -> float:
        """Expected length of a new output; there must be observations."""
        self._update()
        return self._mean

    def survival(self, tokens: float) -> float:
        """The share of outputs longer than that; 1 for anything negative."""
        self._update()
        if tokens <= 0.0:
            return 1.0
        low = min(bisect_right(self._edges, tokens), len(self._edges) - 1) - 1
        start, end = self._edges[low], self._edges[low + 1]
        part = min((tokens - start) / (end - start), 1.0)
        return self._survival[low] + part * (self._survival[low + 1] - self._survival[low])

    def _update(self) -> None:
        if not self._is_outdated:
            return
        self._is_outdated = False
        total = remaining = sum(self._weights)
        self._mean = 0.0
        for index, weight in enumerate(self._weights):
            before = remaining / total
            remaining = max(0.0, remaining - weight)
            self._survival[index + 1] = remaining / total
            width = self._edges[index + 1] - self._edges[index]
            self._mean += width * (before + self._survival[index + 1]) / 2.0
