"""What the engine refuses. OpenVINO GenAI takes most of it without a word and answers with garbage."""

from __future__ import annotations

import math
from collections.abc import Sequence

from inferwire_server.domain.engine import EngineRequest
from inferwire_server.domain.errors import CapabilityAbsent, InvalidRequest
from inferwire_server.domain.generation import Grammar, GrammarKind, Sampling
from inferwire_server.engines.openvino.options import OpenVinoOptions

REQUEST_FIELDS = frozenset(
    {
        "sampling.temperature",
        "sampling.top_p",
        "sampling.top_k",
        "sampling.min_p",
        "sampling.repetition_penalty",
        "sampling.seed",
        "stop.token_ids",
        "stop.min_output_tokens",
        "stop.ignore_end_of_sequence",
        "output.top_logprobs",
    }
)
"""Honoured whatever the options."""
GRAMMAR_FIELDS = frozenset(f"structured_output.{kind.value}" for kind in GrammarKind)


def honoured_fields(options: OpenVinoOptions) -> frozenset[str]:
    """Paths of GenerateRequest that an engine with these options honours."""
    fields = REQUEST_FIELDS
    if options.has_grammars:
        fields |= GRAMMAR_FIELDS
    if not options.prefix_caching:
        fields |= {"cache.bypass"}  # there is nothing to bypass
    return fields


def check_request(request: EngineRequest, options: OpenVinoOptions) -> None:
    """Raise InvalidRequest or CapabilityAbsent for what can never run."""
    _check_capabilities(request, options)
    _check_tokens(request, options)
    _check_sampling(request.sampling)
    if request.grammar is not None:
        check_grammar(request.grammar, options)
        _check_grammar_use(request)


def _check_capabilities(request: EngineRequest, options: OpenVinoOptions) -> None:
    if request.sampling.logit_bias:
        raise CapabilityAbsent("sampling.logit_bias")
    for field in ("presence_penalty", "frequency_penalty"):
        if getattr(request.sampling, field):
            # OpenVINO GenAI 2026.4 adds them where a logit is negative, which makes repeats likelier.
            raise CapabilityAbsent(f"sampling.{field}")
    if request.top_logprobs:
        raise CapabilityAbsent("output.top_logprobs", "only 0, the chosen token itself, is known to this engine")
    if request.prompt_top_logprobs is not None:
        raise CapabilityAbsent("output.prompt_top_logprobs")
    if request.bypass_cache and options.prefix_caching:
        raise CapabilityAbsent("cache.bypass")


def _check_tokens(request: EngineRequest, options: OpenVinoOptions) -> None:
    prompt, resumed = len(request.prompt_token_ids), len(request.resumed_token_ids)
    if not prompt:
        raise InvalidRequest("prompt", "must have at least one token")
    _check_ids("prompt", request.prompt_token_ids, options)
    _check_ids("resume.outputs", request.resumed_token_ids, options)
    _check_ids("stop.token_ids", sorted(request.stop_token_ids), options)
    if request.max_output_tokens < 1:
        raise InvalidRequest("max_output_tokens", "must be at least 1", limit=1, actual=request.max_output_tokens)
    context = options.max_context_tokens
    if prompt >= context:
        message = f"has {prompt} tokens, and the model's context of {context} leaves no room for output"
        raise InvalidRequest("prompt", message, limit=context - 1, actual=prompt)
    output = resumed + request.max_output_tokens
    if prompt + output > context:
        message = f"at most {context - prompt} output tokens fit after a prompt of {prompt} in a context of {context}"
        raise InvalidRequest("max_output_tokens", message, limit=context - prompt, actual=output)
    if not 0 <= request.min_output_tokens <= output:
        message = f"must be 0 to max_output_tokens ({output})"
        raise InvalidRequest("stop.min_output_tokens", message, limit=output, actual=request.min_output_tokens)


def _check_ids(field: str, ids: Sequence[int], options: OpenVinoOptions) -> None:
    if not ids:
        return
    for extreme in (min(ids), max(ids)):
        if not 0 <= extreme < options.vocabulary_size:
            message = f"token id {extreme} is outside the vocabulary of {options.vocabulary_size}"
            raise InvalidRequest(field, message, limit=options.vocabulary_size - 1, actual=extreme)


def _check_sampling(sampling: Sampling) -> None:
    for field, value, is_inside, range_text in (
        ("temperature", sampling.temperature, sampling.temperature >= 0, "0 or more"),
        ("top_p", sampling.top_p, 0 < sampling.top_p <= 1, "above 0, at most 1"),
        ("top_k", sampling.top_k, sampling.top_k >= 0, "0 or more"),
        ("min_p", sampling.min_p, 0 <= sampling.min_p <= 1, "0 to 1"),
        ("repetition_penalty", sampling.repetition_penalty, sampling.repetition_penalty > 0, "above 0"),
        ("seed", sampling.seed, 0 <= sampling.seed < 2**32, "an unsigned 32-bit number"),
    ):
        if not (math.isfinite(value) and is_inside):
            raise InvalidRequest(f"sampling.{field}", f"must be finite and {range_text}")


def check_grammar(grammar: Grammar, options: OpenVinoOptions) -> None:
    """Raise CapabilityAbsent or InvalidRequest for what can be refused without compiling it."""
    field = f"structured_output.{grammar.kind.value}"
    if not options.has_grammars:
        raise CapabilityAbsent(field)
    if grammar.kind is GrammarKind.CHOICES and not grammar.texts:
        raise InvalidRequest(field, "must have at least one text")
    if any("\0" in text for text in (grammar.source, *grammar.texts)):
        raise InvalidRequest(field, "must not contain the character U+0000")


def _check_grammar_use(request: EngineRequest) -> None:
    # The pipeline drops the grammar once an end id has been generated, and has no token left that it may choose
    # while both the grammar and the minimum forbid what is next.
    if request.ignore_end_of_sequence:
        raise InvalidRequest("stop.ignore_end_of_sequence", "cannot be combined with structured_output")
    if request.min_output_tokens:
        raise InvalidRequest("stop.min_output_tokens", "cannot be combined with structured_output")
