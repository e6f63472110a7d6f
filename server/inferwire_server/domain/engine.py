"""The engine port: token ids in, token ids out. Text, stop strings, chat, quotas and queues live above it."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from inferwire_server.domain.generation import Continuation, FinishReason, Grammar, Sampling, TokenLogprobs


class ResumeGuarantee(enum.IntEnum):
    """What a resumed stream equals, as on the wire."""

    NONE = 0
    GREEDY = 1
    EXACT = 2
    BEST_EFFORT = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """Facts that hold from `start()` until shutdown."""

    request_fields: frozenset[str]
    """Paths of GenerateRequest that this engine honours beyond what the layers above do by themselves."""
    max_running: int
    """Most sequences in one batch."""
    max_context_tokens: int
    """Prompt and output together."""
    kv_blocks: int | None = None
    kv_block_tokens: int | None = None
    max_top_logprobs: int = 0
    reports_cached_tokens: bool = False
    batch_invariant: bool = False
    resume_guarantee: ResumeGuarantee = ResumeGuarantee.NONE
    has_cache_salt: bool = False
    """Whether `cache_namespace` separates prefix caches; without it prefix caching is for one tenant only."""
    prefix_caching: bool = False
    prefill_tokens_per_step: int | None = None
    """Prompt tokens in prefill that fill the engine's next steps; more are held back so that the queue can still
    choose. None: give it whatever it has room for."""
    shares_prefill: bool = False
    """Whether equal prompts that arrive together are prefilled once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRequest:
    """One output of one generation. All counts are tokens."""

    id: str
    """Unique among live requests of this engine."""
    prompt_token_ids: Sequence[int]
    max_output_tokens: int
    """Tokens still to produce, beyond `resumed_token_ids`."""
    sampling: Sampling
    output_index: int = 0
    """Part of the (seed, output, position) key of each draw."""
    stop_token_ids: frozenset[int] = frozenset()
    """End the output like an end-of-sequence id, which is always among the engine's own."""
    min_output_tokens: int = 0
    """Counted from the output's first token, resumed ones included."""
    ignore_end_of_sequence: bool = False
    top_logprobs: int | None = None
    prompt_top_logprobs: int | None = None
    grammar: Grammar | None = None
    cache_namespace: str = ""
    """Prefix cache entries are shared only inside one namespace."""
    bypass_cache: bool = False
    resumed_token_ids: Sequence[int] = ()
    """Tokens of this output that exist already; production continues after them."""


@dataclass(slots=True)
class Tokens:
    """New token ids since the last event; an id that ends the output is never among them.

    Under `ignore_end_of_sequence` an engine may deliver end-of-sequence ids like any others; their text is empty.
    """

    token_ids: Sequence[int]
    logprobs: Sequence[TokenLogprobs] = ()


@dataclass(slots=True)
class PrefillProgress:
    """Prompt tokens computed so far."""

    prompt_tokens_done: int


@dataclass(slots=True)
class PromptTokens:
    """Logprobs of the prompt, once, before the first Tokens."""

    tokens: tuple[TokenLogprobs, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """The output is complete. Exactly one of Finished, Failed or Cancelled ends a stream."""

    reason: FinishReason
    end_token_id: int | None = None
    """The end-of-sequence id that ended it."""
    stop_token_id: int | None = None
    """The id of `stop_token_ids` that ended it."""
    cached_tokens: int | None = None
    """Prompt tokens taken from the prefix cache; None when the engine cannot tell."""


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The stream ended because `cancel()` was called."""

    cached_tokens: int | None = None
    """As in Finished."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The engine could not finish. A ServiceError is meant for the caller; anything else is our fault."""

    error: Exception


EngineEvent = Tokens | PrefillProgress | PromptTokens | Finished | Cancelled | Failed
EngineSink = Callable[[EngineEvent], None]
"""Called on the serving loop, never from inside `submit`; must not raise or block."""


class EngineStream(Protocol):
    """A request that the engine has taken."""

    def cancel(self) -> None:
        """Ask for an end. Idempotent; Cancelled (or another terminal under way) follows within a bound."""


class EngineState(enum.IntEnum):
    """As on the wire."""

    STARTING = 1
    READY = 2
    DEGRADED = 3
    DEAD = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineHealth:
    """The engine's own view of itself."""

    state: EngineState
    last_progress: float | None = None
    """time.monotonic() of the last step or idle heartbeat."""
    reason: str = ""
    restarts: int = 0
    is_final: bool = False
    """DEAD, and this process cannot bring it back: it has to end and be replaced."""


class StepTotals(NamedTuple):
    """What an engine's steps add up to since it was made."""

    steps: int = 0
    seconds: float = 0.0
    sequences: int = 0

    def plus(self, seconds: float, sequences: int) -> StepTotals:
        """After one more step."""
        return StepTotals(self.steps + 1, self.seconds + seconds, self.sequences + sequences)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLoad:
    """A snapshot; None is unknown."""

    running: int = 0
    kv_blocks_used: int | None = None
    kv_blocks_reserved: int | None = None
    kv_utilization: float | None = None
    """0 to 1."""
    step_time_s: float | None = None
    """Of the latest step."""
    batch_size: int | None = None
    steps: StepTotals | None = None
    extra: dict[str, float] = field(default_factory=dict)
    """Engine-specific gauges by metric suffix."""


class Engine(Protocol):
    """One loaded model. All methods are called on the serving loop."""

    @property
    def capabilities(self) -> Capabilities:
        """Valid after `start()`."""

    async def start(self) -> None:
        """Load and become ready. Raises EngineDown with a reason that says what to do."""

    def room_for(self, requests: Sequence[EngineRequest]) -> bool:
        """Whether `submit` of all of them would be taken now."""

    def submit(self, request: EngineRequest, sink: EngineSink) -> EngineStream:
        """Take a request.

        Raises InvalidRequest (it can never run), Overloaded (no room now) or EngineDown / Starting.
        """

    def continuation_of(self, request: EngineRequest) -> Continuation:
        """How a request with `resumed_token_ids` would be continued: PREFILLED or REGENERATED."""

    def subscribe(self, changed: Callable[[], None]) -> None:
        """Call `changed` on the serving loop whenever room may have grown or health changed."""

    def health(self) -> EngineHealth:
        """Cheap; may be called at any time."""

    def load(self) -> EngineLoad:
        """Cheap; may be called at any time."""

    async def check(self, grammar: Grammar) -> None:
        """Raise InvalidRequest when the grammar cannot be compiled, or not in time."""

    async def shutdown(self, grace_s: float) -> None:
        """End live streams with Failed(EngineDown) after at most `grace_s` and release everything. Idempotent."""
