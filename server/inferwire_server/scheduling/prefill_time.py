"""How long prompts take from start to first token, learnt from those that got one."""

from __future__ import annotations

MEMORY = 0.98
"""Weight of an observation relative to the next one: the last fifty rule."""


class PrefillTime:
    """A line through (prompt tokens to compute, seconds), by least squares with forgetting.

    Its intercept is what a prompt costs whatever its length (the step under way, its own first step); its slope is the
    inverse of the prefill rate that prompts get beside running outputs.
    """

    def __init__(self) -> None:
        self._weight = 0.0
        self._tokens = 0.0
        self._seconds = 0.0
        self._tokens_squared = 0.0
        self._product = 0.0
        self._intercept_s = 0.0
        self._slope_s = 0.0
        self._deviation_s = 0.0

    @property
    def deviation_s(self) -> float:
        """Mean absolute error of recent predictions."""
        return self._deviation_s

    def observe(self, tokens: int, seconds: float) -> None:
        """A first token came `seconds` after its start, behind that many prompt tokens, its own included."""
        if self._weight:
            self._deviation_s += 0.1 * (abs(seconds - self.predict_s(tokens)) - self._deviation_s)
        self._weight = self._weight * MEMORY + 1.0
        self._tokens = self._tokens * MEMORY + tokens
        self._seconds = self._seconds * MEMORY + seconds
        self._tokens_squared = self._tokens_squared * MEMORY + tokens * tokens
        self._product = self._product * MEMORY + tokens * seconds
        self._fit()

    def predict_s(self, tokens: int) -> float:
        """0 before anything was observed."""
        return self._intercept_s + self._slope_s * tokens

    def _fit(self) -> None:
        spread = self._weight * self._tokens_squared - self._tokens * self._tokens
        slope = 0.0
        if spread > 1e-9 * self._tokens_squared:
            slope = (self._weight * self._product - self._tokens * self._seconds) / spread
        intercept = (self._seconds - slope * self._tokens) / self._weight
        if slope <= 0.0 or intercept < 0.0:
            slope = self._product / self._tokens_squared if self._tokens_squared else 0.0
            intercept = 0.0 if self._tokens_squared else self._seconds / self._weight
        self._slope_s, self._intercept_s = slope, intercept
