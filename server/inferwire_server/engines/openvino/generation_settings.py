"""From a request to the pipeline's own settings. Pure."""

from __future__ import annotations

from typing import Any

from inferwire_server.domain.engine import EngineRequest
from inferwire_server.domain.generation import Grammar, GrammarKind
from inferwire_server.engines.openvino.grammar_spelling import choices_grammar, usual_ebnf, usual_regex

_UINT32 = 0xFFFF_FFFF
GREEDY_BELOW = 1e-6
"""Temperatures below this are greedy: the pipeline divides by them in 32-bit floats."""
_LARGEST_MIN_P = 1 - 2.0**-24
"""The pipeline takes 32-bit floats below 1 only."""


def is_greedy(request: EngineRequest) -> bool:
    """Whether the likeliest token is always taken."""
    return request.sampling.temperature < GREEDY_BELOW


def generation_settings(
    request: EngineRequest, end_ids: frozenset[int], *, max_new_tokens: int, min_new_tokens: int, position: int
) -> dict[str, Any]:
    """Keyword arguments of GenerationConfig. `position` counts the output tokens that are part of the prompt."""
    sampling = request.sampling
    settings: dict[str, Any] = {
        "max_new_tokens": max_new_tokens,
        "do_sample": not is_greedy(request),
        "repetition_penalty": sampling.repetition_penalty,
        "logprobs": 0 if request.top_logprobs is None else 1,
    }
    if settings["do_sample"]:
        settings |= {
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "min_p": min(sampling.min_p, _LARGEST_MIN_P),
            "rng_seed": mixed_seed(sampling.seed, request.output_index, position),
        }
        if sampling.top_k:
            settings["top_k"] = sampling.top_k
    return settings | _stop_settings(request, end_ids, min_new_tokens)


def watched_ids(request: EngineRequest, end_ids: frozenset[int]) -> frozenset[int]:
    """Stop ids that the worker has to look for: under a grammar the pipeline would allow them at its end only."""
    return request.stop_token_ids - end_ids if request.grammar is not None else frozenset()


def mixed_seed(seed: int, output_index: int, position: int) -> int:
    """The generator's start for one output: uint32, different for each output of a seed.

    Two rounds of the 32-bit finaliser of MurmurHash3 (Appleby), the inner one over output and position.
    """
    return _finalise(seed ^ _finalise(output_index * 0x9E37_79B1 + position * 0x85EB_CA77))


def structured_output(grammar: Grammar) -> tuple[str, str]:
    """Keyword and source for StructuredOutputConfig."""
    if grammar.kind is GrammarKind.JSON_SCHEMA:
        return "json_schema", grammar.source
    if grammar.kind is GrammarKind.REGEX:
        return "regex", usual_regex(grammar.source)
    if grammar.kind is GrammarKind.EBNF:
        return "grammar", usual_ebnf(grammar.source)
    return "grammar", choices_grammar(grammar.texts)


def _stop_settings(request: EngineRequest, end_ids: frozenset[int], min_new_tokens: int) -> dict[str, Any]:
    # The pipeline's own ignore_eos switches every stop id off, so a stop id takes the end id's place instead.
    ends = frozenset[int]() if request.ignore_end_of_sequence else end_ids
    stops = ends if request.grammar is not None else ends | request.stop_token_ids
    if not stops:
        return {"ignore_eos": True, "eos_token_id": min(end_ids)}
    return {
        "ignore_eos": False,
        "eos_token_id": min(ends or stops),
        "stop_token_ids": set(stops),
        "min_new_tokens": min_new_tokens,
    }


def _finalise(value: int) -> int:
    value &= _UINT32
    value ^= value >> 16
    value = value * 0x85EB_CA6B & _UINT32
    value ^= value >> 13
    value = value * 0xC2B2_AE35 & _UINT32
    return value ^ value >> 16
