"""What a caller asks for and what comes back, free of any wire format."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field, replace


class Priority(enum.IntEnum):
    """Scheduling class; a smaller number is served sooner."""

    INTERACTIVE = 1
    STANDARD = 2
    BATCH = 3


class FinishReason(enum.IntEnum):
    """Why an output ended, as on the wire."""

    STOP = 1
    LENGTH = 2


class Continuation(enum.IntEnum):
    """How a stream relates to earlier work, as on the wire."""

    FRESH = 0
    ATTACHED = 1
    REPLAYED = 2
    PREFILLED = 3
    REGENERATED = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """Fully resolved sampling: no field is unset."""

    temperature: float = 1.0
    """0 is greedy."""
    top_p: float = 1.0
    top_k: int = 0
    """0 considers the whole vocabulary."""
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int = 0
    """uint32; output i draws from (seed, i, position)."""
    logit_bias: tuple[tuple[int, float], ...] = ()
    """(token id, added logit), sorted by id."""

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """When an output ends before its length."""

    strings: tuple[str, ...] = ()
    token_ids: frozenset[int] = frozenset()
    min_output_tokens: int = 0
    ignore_end_of_sequence: bool = False
    include_match: bool = False


class GrammarKind(enum.Enum):
    """The language a structured-output constraint is written in."""

    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    EBNF = "ebnf"
    CHOICES = "choices"


@dataclass(frozen=True, slots=True, kw_only=True)
class Grammar:
    """A structured-output constraint. For CHOICES, `texts` holds the alternatives and `source` is empty."""

    kind: GrammarKind
    source: str = ""
    texts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheduling:
    """How the request waits."""

    priority: Priority = Priority.STANDARD
    max_queue_time_s: float | None = None
    first_token_target_s: float | None = None
    detach_grace_s: float = 0.0
    """How long the generation lives without a reader."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumedOutput:
    """What a reader already holds of one output."""

    output_index: int
    token_ids: tuple[int, ...]
    finished: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Resume:
    """Continue an interrupted stream instead of starting over."""

    prompt_digest: bytes = b""
    outputs: tuple[ResumedOutput, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """One resolved request: checked, defaults filled in, prompt tokenised."""

    request_id: str
    attempt: int = 0
    model: str
    """name@version."""
    prompt_token_ids: tuple[int, ...]
    max_output_tokens: int
    sampling: Sampling = field(default_factory=Sampling)
    stop: Stop = field(default_factory=Stop)
    count: int = 1
    grammar: Grammar | None = None
    top_logprobs: int | None = None
    """None: no logprobs; 0: the chosen token only."""
    prompt_top_logprobs: int | None = None
    skip_special_tokens: bool = True
    scheduling: Scheduling = field(default_factory=Scheduling)
    cache_salt: str = ""
    bypass_cache: bool = False
    resume: Resume | None = None
    deadline: float | None = None
    """Monotonic seconds (time.monotonic); None when the caller set none."""


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """One candidate token and its natural-log probability (None: unknown)."""

    token_id: int
    logprob: float | None


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """The chosen token at a position and, when asked for, the likeliest candidates, best first."""

    token: TokenLogprob
    top: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """The engine has taken the request."""

    request_id: str
    model: str
    model_fingerprint: str
    prompt_tokens: int
    prompt_digest: bytes
    max_output_tokens: int
    seed: int | None = None
    """None when greedy and none was asked for."""
    continuation: Continuation = Continuation.FRESH

    def continued(self, continuation: Continuation) -> Started:
        """The same for a reader that joins in another way."""
        return replace(self, continuation=continuation)


class Stage(enum.IntEnum):
    """Where a generation is, as on the wire."""

    QUEUED = 1
    PREFILL = 2
    DECODE = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """A sign of life for a caller who asked for one."""

    stage: Stage
    queue_position: int | None = None
    estimated_wait_s: float | None = None
    prompt_tokens_done: int | None = None


@dataclass(slots=True)
class Delta:
    """Consecutive tokens of one output and exactly their text."""

    output_index: int
    token_offset: int
    """Tokens of this output before these, resumed ones included."""
    token_ids: Sequence[int]
    text: str
    logprobs: Sequence[TokenLogprobs] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputFinished:
    """One output is complete."""

    output_index: int
    reason: FinishReason
    output_tokens: int
    end_token_id: int | None = None
    stop_string: str | None = None
    stop_token_id: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptLogprobs:
    """Logprobs of prompt tokens from `token_offset` on."""

    token_offset: int
    tokens: tuple[TokenLogprobs, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Token counts; cached_tokens is None where the engine cannot tell."""

    prompt_tokens: int
    output_tokens: int
    cached_tokens: int | None = None
    resumed_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """Seconds; None is unknown."""

    queue_time_s: float | None = None
    first_token_time_s: float | None = None
    total_time_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Completed:
    """Last event of a whole stream; a stream without it is broken."""

    usage: Usage
    timings: Timings


Event = Started | Progress | Delta | OutputFinished | PromptLogprobs | Completed
