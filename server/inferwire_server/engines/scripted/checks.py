"""What the scripted engine refuses because it could never run."""

from __future__ import annotations

from collections.abc import Collection

from inferwire_server.domain.engine import EngineRequest
from inferwire_server.domain.errors import InvalidRequest
from inferwire_server.engines.scripted.options import ScriptedOptions
from inferwire_server.engines.scripted.vocabulary import VOCABULARY_SIZE


def check_request(request: EngineRequest, options: ScriptedOptions) -> None:
    """Raise InvalidRequest when no engine of this size could ever run the request."""
    if not request.prompt_token_ids:
        raise InvalidRequest("token_ids", "the prompt has no tokens")
    _check_ids("token_ids", request.prompt_token_ids)
    _check_ids("resume.outputs", request.resumed_token_ids)
    _check_ids("stop.token_ids", request.stop_token_ids)
    _check_ids("sampling.logit_bias", [token_id for token_id, _ in request.sampling.logit_bias])
    if request.max_output_tokens < 1:
        raise InvalidRequest("max_output_tokens", "must be at least 1", actual=request.max_output_tokens)
    _check_length(request, options)
    for field, count in (
        ("output.top_logprobs", request.top_logprobs),
        ("output.prompt_top_logprobs", request.prompt_top_logprobs),
    ):
        if count is not None and not 0 <= count <= options.max_top_logprobs:
            limit = options.max_top_logprobs
            raise InvalidRequest(field, f"must be 0 to {limit}", limit=limit, actual=count)


def total_tokens(request: EngineRequest) -> int:
    """Most tokens that the request can come to."""
    return len(request.prompt_token_ids) + len(request.resumed_token_ids) + request.max_output_tokens


def _check_length(request: EngineRequest, options: ScriptedOptions) -> None:
    total = total_tokens(request)
    limit = min(options.max_context_tokens, options.kv_blocks * options.block_tokens)
    if total > limit:
        prompt_fits = len(request.prompt_token_ids) + len(request.resumed_token_ids) < limit
        field = "max_output_tokens" if prompt_fits else "token_ids"
        raise InvalidRequest(
            field, f"prompt and output together may have {limit} tokens, not {total}", limit=limit, actual=total
        )


def _check_ids(field: str, token_ids: Collection[int]) -> None:
    if token_ids and not (min(token_ids) >= 0 and max(token_ids) < VOCABULARY_SIZE):
        bad = next(token_id for token_id in token_ids if not 0 <= token_id < VOCABULARY_SIZE)
        limit = VOCABULARY_SIZE - 1
        raise InvalidRequest(field, f"token id outside 0 to {limit}", limit=limit, actual=bad)
