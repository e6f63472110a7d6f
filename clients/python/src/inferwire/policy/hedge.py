"""When a second attempt may be sent beside a first one whose first token is late."""

from __future__ import annotations

import math
from collections import deque

from inferwire.policy.budget import RetryBudget
from inferwire.settings import BudgetPolicy, HedgePolicy

_LARGEST_PROMPT_BYTES = 32 * 1024
"""About 8,000 tokens: computing more than that twice costs more than waiting."""
_SHORT_PROMPT_BYTES = 255
_KEPT_TIMES = 200
_FEWEST_TIMES = 20
_REFRESHED_AFTER_S = 3.0
_MOST_SAVED_UP = 10


class Hedging:
    """The delays of hedges by length of prompt, and their own budget without a reserve.

    The delay is a quantile of the latest times to first token; of an attempt that was overtaken, the time until then
    stands for its own. In any time with N requests at most `budget_ratio x N + 10` hedges are granted.
    """

    def __init__(self, policy: HedgePolicy) -> None:
        self._policy = policy
        self._budget = RetryBudget(BudgetPolicy(ratio=policy.budget_ratio, reserve=0, cap=_MOST_SAVED_UP))
        self._buckets: dict[int, _Times] = {}

    def requested(self) -> None:
        """Count a request that might be hedged."""
        self._budget.deposit()

    def delay_s(self, prompt_bytes: int, now: float) -> float | None:
        """How long a first token may take before a hedge is sent; None where none ever is: the prompt is too long, or
        too little is known of its like. `now` in monotonic seconds."""
        times = self._buckets.get(_bucket(prompt_bytes))
        if times is None or len(times) < _FEWEST_TIMES or prompt_bytes > _LARGEST_PROMPT_BYTES:
            return None
        return max(self._policy.min_delay_s, times.quantile(self._policy.quantile, now))

    def observe(self, prompt_bytes: int, seconds: float) -> None:
        """Note a time to first token, or of an attempt that was overtaken the time until then."""
        self._buckets.setdefault(_bucket(prompt_bytes), _Times()).add(seconds)

    def withdraw(self, now: float) -> bool:
        """Pay for one hedge; False when that cannot be."""
        return self._budget.withdraw(now)

    def __repr__(self) -> str:
        return f"<Hedging {self._budget!r}, {len(self._buckets)} lengths of prompts>"


def _bucket(prompt_bytes: int) -> int:
    """Prompts within a factor of two are alike, and so are all short ones."""
    return max(prompt_bytes, _SHORT_PROMPT_BYTES).bit_length()


class _Times:
    """The latest times to first token of prompts of like length, and a quantile that is fresh enough."""

    __slots__ = ("_latest", "_quantile_s", "_refreshed_at")

    def __init__(self) -> None:
        self._latest: deque[float] = deque(maxlen=_KEPT_TIMES)
        self._quantile_s = 0.0
        self._refreshed_at = -math.inf

    def __len__(self) -> int:
        return len(self._latest)

    def add(self, seconds: float) -> None:
        self._latest.append(seconds)

    def quantile(self, share: float, now: float) -> float:
        if now - self._refreshed_at >= _REFRESHED_AFTER_S:
            ordered = sorted(self._latest)
            self._quantile_s = ordered[min(len(ordered) - 1, int(share * len(ordered)))]
            self._refreshed_at = now
        return self._quantile_s
