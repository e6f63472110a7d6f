"""A request as the caller wrote it: unset stays unset, nothing is checked, no token is counted yet."""

from __future__ import annotations

from dataclasses import dataclass, field

from inferwire_server.domain.generation import Grammar, Priority, Resume


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation."""

    role: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """Messages to be rendered by the model's chat template."""

    messages: tuple[Message, ...]
    add_generation_prompt: bool = True
    template_variables_json: str = ""


Prompt = str | tuple[int, ...] | Conversation
"""Text, token ids, or a conversation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingDraft:
    """Sampling fields; None is unset and means the model's default."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: int | None = None
    logit_bias: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationDraft:
    """A GenerateRequest in the domain's words."""

    model: str
    prompt: Prompt | None = None
    max_output_tokens: int | None = None
    sampling: SamplingDraft = field(default_factory=SamplingDraft)
    stop_strings: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    min_output_tokens: int = 0
    ignore_end_of_sequence: bool = False
    include_match: bool = False
    count: int | None = None
    top_logprobs: int | None = None
    prompt_top_logprobs: int | None = None
    skip_special_tokens: bool = True
    grammar: Grammar | None = None
    request_id: str = ""
    attempt: int = 0
    priority: Priority = Priority.STANDARD
    max_queue_time_s: float | None = None
    first_token_target_s: float | None = None
    detach_grace_s: float | None = None
    cache_salt: str = ""
    bypass_cache: bool = False
    expected_fingerprint: str = ""
    expected_tokenizer_digest: str = ""
    expected_chat_template_digest: str = ""
    resume: Resume | None = None
    progress_interval_s: float | None = None
    is_streaming: bool = False
    deadline: float | None = None
    """Monotonic seconds; None when the caller set none."""
    set_fields: frozenset[str] = frozenset()
    """Paths of the request fields that were set, as in `sampling.top_k`."""
