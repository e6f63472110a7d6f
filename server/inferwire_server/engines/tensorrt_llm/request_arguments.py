"""From one engine request to the keywords of `LLM.generate_async`: fresh objects each time, for it changes them."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable, Iterator

from inferwire_server.domain.engine import EngineRequest
from inferwire_server.domain.errors import InvalidRequest
from inferwire_server.domain.generation import Sampling
from inferwire_server.engines.tensorrt_llm.cache_salt import cache_salt
from inferwire_server.engines.tensorrt_llm.checkpoint import Checkpoint
from inferwire_server.engines.tensorrt_llm.grammars import KINDS, guide
from inferwire_server.engines.tensorrt_llm.installation import Installation
from inferwire_server.engines.tensorrt_llm.llm_arguments import context_tokens, input_tokens
from inferwire_server.engines.tensorrt_llm.options import Options


class RequestArguments:
    """Checks and translates requests for one loaded model."""

    def __init__(self, checkpoint: Checkpoint, options: Options, installation: Installation) -> None:
        self._checkpoint = checkpoint
        self._options = options
        self._installation = installation
        self._context_tokens = context_tokens(checkpoint, options)
        self._input_tokens = input_tokens(checkpoint, options)
        self._end_ids = sorted(checkpoint.end_token_ids)
        self._extends_sampling = options.sampler == "trtllm"
        self._bypasses = itertools.count()

    def check(self, request: EngineRequest) -> None:
        """Raise InvalidRequest for what the engine could only choke on or ignore."""
        prompt_tokens = len(request.prompt_token_ids) + len(request.resumed_token_ids)
        if not request.prompt_token_ids:
            raise InvalidRequest("prompt", "must have at least one token")
        if prompt_tokens > self._input_tokens:
            raise InvalidRequest(
                "prompt", f"at most {self._input_tokens} tokens", limit=self._input_tokens, actual=prompt_tokens
            )
        if request.max_output_tokens < 1:
            raise InvalidRequest("max_output_tokens", "must be at least 1")
        total = prompt_tokens + request.max_output_tokens
        if total > self._context_tokens:
            room = self._context_tokens - prompt_tokens
            raise InvalidRequest(
                "max_output_tokens",
                f"at most {room} after a prompt of {prompt_tokens} tokens",
                limit=room,
                actual=request.max_output_tokens,
            )
        self._check_ids("prompt", request.prompt_token_ids)
        self._check_ids("resume.outputs", request.resumed_token_ids)
        self._check_ids("stop.token_ids", request.stop_token_ids)
        for path in _unhonoured(request, extends_sampling=self._extends_sampling, options=self._options):
            raise InvalidRequest(path, "not supported by this model’s engine")

    def build(self, request: EngineRequest) -> dict[str, object]:
        """Keywords for one call, filtered by the installed signature."""
        only_for = f"{request.id} {next(self._bypasses)}" if request.bypass_cache else ""
        arguments: dict[str, object] = {
            "inputs": {"prompt_token_ids": [int(i) for i in (*request.prompt_token_ids, *request.resumed_token_ids)]},
            "sampling_params": self._installation.sampling_params(**self._sampling(request)),
            "streaming": True,
            "cache_salt": cache_salt(request.cache_namespace, only_for=only_for),
        }
        return {name: value for name, value in arguments.items() if name in self._installation.request_arguments}

    def _check_ids(self, field: str, ids: Iterable[int]) -> None:
        size = self._checkpoint.vocabulary_size
        outside = next((i for i in ids if not 0 <= i < size), None)
        if outside is not None:
            raise InvalidRequest(field, f"token id {outside} is outside the vocabulary of {size}")

    def _sampling(self, request: EngineRequest) -> dict[str, object]:
        ends = [] if request.ignore_end_of_sequence else self._end_ids[1:]
        stops = sorted({*ends, *request.stop_token_ids})
        arguments: dict[str, object] = {
            "end_id": self._end_ids[0],
            "pad_id": self._end_ids[0],
            "max_tokens": request.max_output_tokens,
            "stop_token_ids": stops or None,
            "include_stop_str_in_output": False,
            "ignore_eos": request.ignore_end_of_sequence,
            "detokenize": False,
            "add_special_tokens": False,
            **_draws(request.sampling, request.output_index, extends_sampling=self._extends_sampling),
        }
        if request.ignore_end_of_sequence and self._extends_sampling:
            # The default sampler cannot hold the end ids back: there they pass as ordinary tokens.
            arguments["bad_token_ids"] = self._end_ids
        if request.top_logprobs is not None:
            arguments["logprobs"] = max(1, request.top_logprobs)
        if request.grammar is not None:
            arguments["guided_decoding"] = self._installation.guided_decoding_params(
                **guide(request.grammar, self._options.guided_decoding)
            )
        return arguments


def _draws(sampling: Sampling, output_index: int, *, extends_sampling: bool) -> dict[str, object]:
    # With neither top_k nor top_p the engine is greedy whatever the temperature, so both always go down.
    if sampling.is_greedy:
        arguments: dict[str, object] = {"top_k": 1, "top_p": None, "temperature": None}
    else:
        arguments = {"top_k": sampling.top_k, "top_p": sampling.top_p, "temperature": sampling.temperature}
    if extends_sampling:
        arguments |= {
            "seed": _seed(sampling.seed, output_index),
            "min_p": sampling.min_p,
            "repetition_penalty": sampling.repetition_penalty,
            "presence_penalty": sampling.presence_penalty,
            "frequency_penalty": sampling.frequency_penalty,
        }
    return arguments


def _seed(seed: int, output_index: int) -> int:
    """The engine's one 63-bit seed for a pair of ours, so that outputs of one request are independent draws."""
    digest = hashlib.sha256(f"{seed} {output_index}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def _unhonoured(request: EngineRequest, *, extends_sampling: bool, options: Options) -> Iterator[str]:
    neutral = Sampling()
    sampling = request.sampling
    if sampling.logit_bias:
        yield "sampling.logit_bias"
    if not extends_sampling:
        for name in ("min_p", "repetition_penalty", "presence_penalty", "frequency_penalty"):
            if getattr(sampling, name) != getattr(neutral, name):
                yield f"sampling.{name}"
    if request.min_output_tokens:
        yield "stop.min_output_tokens"
    if request.top_logprobs is not None and not options.logprobs:
        yield "output.top_logprobs"
    if request.prompt_top_logprobs is not None:
        yield "output.prompt_top_logprobs"
    if request.grammar is not None and request.grammar.kind not in KINDS[options.guided_decoding]:
        yield f"structured_output.{request.grammar.kind.value}"
