"""Every check on a draft that needs no tokens, in one place and before anything is spent on it."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

from inferwire_server.domain.engine import Capabilities
from inferwire_server.domain.errors import CapabilityAbsent, InvalidRequest, ModelMismatch
from inferwire_server.domain.limits import LAYER_FIELDS, LIMITS
from inferwire_server.domain.model import ModelFacts
from inferwire_server.domain.request import Conversation, GenerationDraft, SamplingDraft

_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]+")


def honoured_fields(capabilities: Capabilities, facts: ModelFacts) -> frozenset[str]:
    """Paths of GenerateRequest that this model on this engine honours."""
    fields = LAYER_FIELDS | capabilities.request_fields
    if capabilities.resume_guarantee:
        fields |= {"resume"}
    return fields if facts.chat_roles else fields - {"chat"}


def max_output_count(capabilities: Capabilities) -> int:
    """Most outputs of one request: all of them run together."""
    return min(LIMITS.output_count, capabilities.max_running)


def check_draft(draft: GenerationDraft, facts: ModelFacts, capabilities: Capabilities) -> None:
    """Raise InvalidRequest, CapabilityAbsent or ModelMismatch for the first thing that is wrong."""
    _check_expected_model(draft, facts)
    _check_capabilities(draft.set_fields, honoured_fields(capabilities, facts))
    _check_identity(draft)
    _check_prompt(draft, facts)
    _check_lengths(draft, facts)
    check_sampling(draft.sampling, facts.vocabulary_size)
    _check_stop(draft, facts)
    _check_output(draft, capabilities)
    _check_waiting(draft)
    _check_resume(draft, facts)


def _check_expected_model(draft: GenerationDraft, facts: ModelFacts) -> None:
    for field, expected, actual in (
        ("fingerprint", draft.expected_fingerprint, facts.fingerprint),
        ("tokenizer_digest", draft.expected_tokenizer_digest, facts.tokenizer_digest),
        ("chat_template_digest", draft.expected_chat_template_digest, facts.chat_template_digest),
    ):
        if expected and expected != actual:
            raise ModelMismatch(f"the served model has another {field}", field=f"expected_model.{field}")


def _check_capabilities(set_fields: Iterable[str], honoured: frozenset[str]) -> None:
    for path in sorted(set_fields):
        if path not in honoured:
            raise CapabilityAbsent(path)


def _check_identity(draft: GenerationDraft) -> None:
    if draft.request_id:
        _at_most("request_id", len(draft.request_id), LIMITS.request_id_length, "characters")
        if not _REQUEST_ID.fullmatch(draft.request_id):
            raise InvalidRequest("request_id", "only letters, digits and ._:- are allowed")
    _at_most("cache.salt", len(draft.cache_salt), LIMITS.cache_salt_length, "characters")


def _check_prompt(draft: GenerationDraft, facts: ModelFacts) -> None:
    prompt = draft.prompt
    if prompt is None:
        raise InvalidRequest("input", "exactly one of prompt, token_ids, chat is required")
    if isinstance(prompt, str):
        if not prompt:
            raise InvalidRequest("prompt", "must not be empty")
    elif isinstance(prompt, Conversation):
        check_has_chat(facts)
    else:
        if not prompt:
            raise InvalidRequest("token_ids.ids", "must not be empty")
        for index, token_id in enumerate(prompt):
            if token_id >= facts.vocabulary_size:
                raise _outside_vocabulary(f"token_ids.ids[{index}]", token_id, facts)


def check_has_chat(facts: ModelFacts) -> None:
    """Raise CapabilityAbsent for a model without a chat template. Messages are checked as they are rendered."""
    if not facts.chat_roles:
        raise CapabilityAbsent("chat", "this model has no chat template; send prompt or token_ids")


def _check_lengths(draft: GenerationDraft, facts: ModelFacts) -> None:
    if draft.max_output_tokens is not None:
        limit = facts.max_context_tokens - 1
        if not 1 <= draft.max_output_tokens <= limit:
            raise InvalidRequest(
                "max_output_tokens", f"must be 1 to {limit}", limit=limit, actual=draft.max_output_tokens
            )


def check_sampling(sampling: SamplingDraft, vocabulary_size: int) -> None:
    """Ranges and finiteness."""
    _between("sampling.temperature", sampling.temperature, 0.0, LIMITS.temperature)
    _between("sampling.top_p", sampling.top_p, 0.0, 1.0, above=True)
    _between("sampling.min_p", sampling.min_p, 0.0, 1.0, below=True)
    _between("sampling.repetition_penalty", sampling.repetition_penalty, 0.0, LIMITS.repetition_penalty, above=True)
    _between("sampling.presence_penalty", sampling.presence_penalty, -LIMITS.penalty, LIMITS.penalty)
    _between("sampling.frequency_penalty", sampling.frequency_penalty, -LIMITS.penalty, LIMITS.penalty)
    _at_most("sampling.logit_bias", len(sampling.logit_bias), LIMITS.logit_bias_entries, "entries")
    seen: set[int] = set()
    for index, (token_id, bias) in enumerate(sampling.logit_bias):
        path = f"sampling.logit_bias[{index}]"
        if token_id >= vocabulary_size:
            raise InvalidRequest(f"{path}.token_id", f"outside the vocabulary of {vocabulary_size} tokens")
        if token_id in seen:
            raise InvalidRequest(f"{path}.token_id", "named twice")
        seen.add(token_id)
        _between(f"{path}.bias", bias, -LIMITS.logit_bias, LIMITS.logit_bias)


def _check_stop(draft: GenerationDraft, facts: ModelFacts) -> None:
    _at_most("stop.strings", len(draft.stop_strings), LIMITS.stop_strings, "strings")
    for index, text in enumerate(draft.stop_strings):
        if not text:
            raise InvalidRequest(f"stop.strings[{index}]", "must not be empty")
        _at_most(f"stop.strings[{index}]", len(text), LIMITS.stop_string_length, "characters")
    _at_most("stop.token_ids", len(draft.stop_token_ids), LIMITS.stop_token_ids, "ids")
    for index, token_id in enumerate(draft.stop_token_ids):
        if token_id >= facts.vocabulary_size:
            raise _outside_vocabulary(f"stop.token_ids[{index}]", token_id, facts)
    limit = draft.max_output_tokens or facts.max_context_tokens - 1
    _at_most("stop.min_output_tokens", draft.min_output_tokens, limit, "tokens")


def _check_output(draft: GenerationDraft, capabilities: Capabilities) -> None:
    if draft.count is not None:
        limit = max_output_count(capabilities)
        if not 1 <= draft.count <= limit:
            raise InvalidRequest("output.count", f"must be 1 to {limit}", limit=limit, actual=draft.count)
    for field, value in (
        ("output.top_logprobs", draft.top_logprobs),
        ("output.prompt_top_logprobs", draft.prompt_top_logprobs),
    ):
        if value is not None:
            _at_most(field, value, capabilities.max_top_logprobs, "candidates")


def _check_waiting(draft: GenerationDraft) -> None:
    for field, value in (
        ("scheduling.max_queue_time", draft.max_queue_time_s),
        ("scheduling.first_token_target", draft.first_token_target_s),
    ):
        _between(field, value, 0.0, LIMITS.duration_s, above=True, unit=" s")
    _between("scheduling.detach_grace", draft.detach_grace_s, 0.0, LIMITS.detach_grace_s, unit=" s")
    if draft.progress_interval_s is not None:
        if not draft.is_streaming:
            raise InvalidRequest("progress_interval", "only for StreamGenerate")
        _between(
            "progress_interval",
            draft.progress_interval_s,
            LIMITS.progress_interval_min_s,
            LIMITS.progress_interval_max_s,
            unit=" s",
        )


def _check_resume(draft: GenerationDraft, facts: ModelFacts) -> None:
    if draft.resume is None:
        return
    if not draft.is_streaming:
        raise InvalidRequest("resume", "only for StreamGenerate")
    if not draft.resume.prompt_digest:
        raise InvalidRequest("resume.prompt_digest", "required")
    seen: set[int] = set()
    for index, output in enumerate(draft.resume.outputs):
        path = f"resume.outputs[{index}]"
        if output.output_index >= (draft.count or 1):
            raise InvalidRequest(f"{path}.output_index", "no such output")
        if output.output_index in seen:
            raise InvalidRequest(f"{path}.output_index", "named twice")
        seen.add(output.output_index)
        for position, token_id in enumerate(output.token_ids):
            if token_id >= facts.vocabulary_size:
                raise _outside_vocabulary(f"{path}.token_ids[{position}]", token_id, facts)


def _outside_vocabulary(path: str, token_id: int, facts: ModelFacts) -> InvalidRequest:
    limit = facts.vocabulary_size - 1
    return InvalidRequest(
        path, f"outside the vocabulary of {facts.vocabulary_size} tokens", limit=limit, actual=token_id
    )


def _at_most(field: str, actual: int, limit: int, unit: str) -> None:
    if actual > limit:
        raise InvalidRequest(field, f"at most {limit} {unit}, not {actual}", limit=limit, actual=actual)


def _between(
    field: str,
    value: float | None,
    low: float,
    high: float,
    *,
    above: bool = False,
    below: bool = False,
    unit: str = "",
) -> None:
    if value is None:
        return
    is_inside = (value > low if above else value >= low) and (value < high if below else value <= high)
    if not math.isfinite(value) or not is_inside:
        start = f"above {low:g}" if above else f"{low:g}"
        end = f"below {high:g}" if below else f"{high:g}"
        raise InvalidRequest(field, f"must be {start} to {end}{unit}, and finite")
