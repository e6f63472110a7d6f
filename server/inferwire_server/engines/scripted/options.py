"""How big and how fast the scripted engine pretends to be."""

from __future__ import annotations

import math
from dataclasses import dataclass


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
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        for name in ("step_base_s", "step_per_running_s", "start_delay_s", "recover_after_s"):
            if not 0.0 <= (getattr(self, name) or 0.0) < math.inf:
                raise ValueError(f"{name} must be a number of seconds from 0, not {getattr(self, name)}")
        if not self.prefill_tokens_per_s > 0.0:
            raise ValueError(f"prefill_tokens_per_s must be above 0, not {self.prefill_tokens_per_s}")
        if not 0 <= self.max_top_logprobs <= 200:
            raise ValueError(f"max_top_logprobs must be 0 to 200, not {self.max_top_logprobs}")
