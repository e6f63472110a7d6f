"""Sampling parameters: keyword-only, checked late, and changed by whoever receives them."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any


@dataclass(slots=True, kw_only=True)
class GuidedDecodingParams:
    """At most one guide."""

    json: Any = None
    regex: str | None = None
    grammar: str | None = None
    json_object: bool = False
    structural_tag: str | None = None

    def check(self) -> None:
        guides = sum(bool(getattr(self, item.name)) for item in fields(self))
        if guides > 1:
            raise ValueError(f"one guide at most, not {guides}")


@dataclass(slots=True, kw_only=True)
class SamplingParams:
    """The recorded fields with their recorded defaults."""

    end_id: int | None = None
    pad_id: int | None = None
    max_tokens: int | None = 32
    bad: Any = None
    bad_token_ids: list[int] | None = None
    stop: Any = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool = False
    embedding_bias: Any = None
    logits_processor: Any = None
    apply_batched_logits_processor: bool = False
    n: int = 1
    best_of: int | None = None
    use_beam_search: bool = False
    top_k: int | None = None
    top_p: float | None = None
    top_p_min: float | None = None
    top_p_reset_ids: int | None = None
    top_p_decay: float | None = None
    seed: int | None = None
    temperature: float | None = None
    min_tokens: int | None = None
    beam_search_diversity_rate: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    length_penalty: float | None = None
    early_stopping: int | None = None
    no_repeat_ngram_size: int | None = None
    min_p: float | None = None
    beam_width_array: list[int] | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    return_context_logits: bool = False
    return_generation_logits: bool = False
    exclude_input_from_output: bool = True
    return_encoder_output: bool = False
    return_perf_metrics: bool = False
    additional_model_outputs: Any = None
    lookahead_config: Any = None
    guided_decoding: GuidedDecodingParams | None = None
    ignore_eos: bool = False
    detokenize: bool = True
    add_special_tokens: bool = True
    truncate_prompt_tokens: int | None = None
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    uses: int = field(default=0, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.pad_id is None:
            self.pad_id = self.end_id
        self.best_of = self.best_of or self.n
        if self.best_of < self.n:
            raise ValueError(f"best_of {self.best_of} is less than n {self.n}")
        if self.best_of > 1 and self.is_greedy:
            raise ValueError("greedy decoding returns one output")
        if self.top_k is not None and self.top_k < 0:
            raise ValueError(f"top_k {self.top_k} is negative; 0 is all")
        if self.top_p is not None and not 0.0 <= self.top_p <= 1.0:
            raise ValueError(f"top_p {self.top_p} is not in 0..1")
        if self.temperature is not None and self.temperature < 0.0:
            raise ValueError(f"temperature {self.temperature} is negative")
        if self.guided_decoding is not None:
            self.guided_decoding.check()

    @property
    def is_greedy(self) -> bool:
        """Without top_k and top_p the temperature alone does not make the engine sample."""
        if self.temperature == 0.0:
            return True
        return not self.use_beam_search and self.top_k in (None, 1) and self.top_p in (None, 0.0)

    def take(self) -> None:
        """What a submission leaves behind in the caller's own object."""
        self.uses += 1
        if self.uses > 1:
            raise ValueError("these parameters were changed by an earlier request")
        if self.end_id is not None and (self.stop is not None or self.bad is not None):
            raise RuntimeError("stop or bad strings are not processed by the tokenizer when end_id is given")
        self.pad_id = self.pad_id if self.pad_id is not None else self.end_id
        self.return_perf_metrics = True
