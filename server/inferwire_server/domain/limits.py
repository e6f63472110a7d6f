"""The one table of bounds on requests, whatever the model: validation checks it, the contract's comments publish it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Inclusive bounds. Lengths of text are characters unless the name says bytes."""

    request_id_length: int = 128
    messages: int = 1024
    template_variables_bytes: int = 64 * 1024
    temperature: float = 100.0
    penalty: float = 2.0
    repetition_penalty: float = 10.0
    logit_bias_entries: int = 1024
    logit_bias: float = 100.0
    stop_strings: int = 16
    stop_string_length: int = 256
    stop_token_ids: int = 64
    json_schema_bytes: int = 64 * 1024
    json_schema_depth: int = 64
    """Levels of objects and lists."""
    json_schema_properties: int = 256
    json_schema_count: int = 1000
    """Of lengths, of items, and of members of an enum or a choice."""
    regex_bytes: int = 8 * 1024
    ebnf_bytes: int = 64 * 1024
    choices: int = 256
    choice_length: int = 1024
    detach_grace_s: float = 300.0
    cache_salt_length: int = 128
    progress_interval_min_s: float = 0.1
    progress_interval_max_s: float = 60.0
    duration_s: float = 7 * 24 * 3600.0
    output_count: int = 16
    page_size: int = 1000


LIMITS = Limits()

LAYER_FIELDS = frozenset(
    {
        "model",
        "prompt",
        "token_ids",
        "chat",
        "max_output_tokens",
        "stop.strings",
        "stop.include_match",
        "output.count",
        "output.text",
        "output.token_ids",
        "output.skip_special_tokens",
        "request_id",
        "attempt",
        "scheduling.priority",
        "scheduling.max_queue_time",
        "scheduling.first_token_target",
        "scheduling.detach_grace",
        "expected_model.fingerprint",
        "expected_model.tokenizer_digest",
        "expected_model.chat_template_digest",
        "progress_interval",
    }
)
"""Request fields honoured above the engine, whatever the engine."""
