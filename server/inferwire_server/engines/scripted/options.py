"""How big and how fast the scripted engine pretends to be."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedOptions:
    """A step takes `step_base_s + step_per_running_s * running + prompt tokens of the step / prefill_tokens_per_s`."""

    step_base_s: float = 0.01
    step_per_running_s: float = 0.0
    prefill_tokens_per_s: float = math.inf
    prefill_chunk_tokens: int = 512
    """Most prompt tokens in one step, beside the tokens of the running requests."""
    max_running: int = 32
    max_context_tokens: int = 8192
    kv_blocks: int = 16384
    block_tokens: int = 16
    prefix_caching: bool = True
    max_top_logprobs: int = 20
    start_delay_s: float = 0.0
    """Seconds from `start` (and from `recover`) until the engine is ready."""
    recover_after_s: float | None = None
    """Seconds after which a dead engine recovers by itself; None: only when told to."""

    def __post_init__(self) -> None:
        for name in ("max_running", "max_context_tokens", "kv_blocks", "block_tokens", "prefill_chunk_tokens"):
            self._check(name, lambda value: isinstance(value, int) and value >= 1, "a whole number from 1")
        for name in ("step_base_s", "step_per_running_s", "start_delay_s"):
            self._check(name, lambda value: 0.0 <= value < math.inf, "seconds from 0")
        self._check("recover_after_s", lambda value: value is None or 0.0 <= value < math.inf, "seconds from 0")
        self._check("prefill_tokens_per_s", lambda value: value > 0.0, "a number above 0")
        self._check("max_top_logprobs", lambda value: isinstance(value, int) and 0 <= value <= 200, "0 to 200")

    def _check(self, name: str, is_good: Callable[[Any], bool], expected: str) -> None:
        value = getattr(self, name)
        if isinstance(value, str | bool) or not is_good(value):
            raise ValueError(f"{name} must be {expected}, not {value!r}")
