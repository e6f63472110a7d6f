"""What the engine can honour, from the version found and the options chosen. Nothing is claimed on a guess."""

from __future__ import annotations

from inferwire_server.domain.engine import Capabilities, ResumeGuarantee
from inferwire_server.engines.tensorrt_llm.checkpoint import Checkpoint
from inferwire_server.engines.tensorrt_llm.grammars import KINDS
from inferwire_server.engines.tensorrt_llm.installation import Installation
from inferwire_server.engines.tensorrt_llm.llm_arguments import caches_prefixes, context_tokens
from inferwire_server.engines.tensorrt_llm.options import Options

_ALWAYS = frozenset(
    {
        "sampling.temperature",
        "sampling.top_p",
        "sampling.top_k",
        "stop.token_ids",
        "stop.ignore_end_of_sequence",
    }
)
_OF_THE_TRTLLM_SAMPLER = frozenset(
    {
        "sampling.min_p",
        "sampling.repetition_penalty",
        "sampling.presence_penalty",
        "sampling.frequency_penalty",
        "sampling.seed",
    }
)
"""The default sampler of 1.2 takes these without complaint and ignores them."""
_SALTED = frozenset({"cache.salt", "cache.bypass"})

TORCH_TOP_LOGPROBS = 20
"""The TRTLLM sampler reports the chosen token's logprob alone."""


def honoured_fields(options: Options, installation: Installation) -> frozenset[str]:
    """Paths of GenerateRequest that are honoured; every other engine field is refused by name.

    `stop.min_output_tokens` never is: the engine holds back only one end id until the minimum and no stop id at all,
    and its default sampler counts the prompt as output.
    """
    paths = set(_ALWAYS)
    if options.sampler == "trtllm":
        paths |= _OF_THE_TRTLLM_SAMPLER
    if options.logprobs:
        paths.add("output.top_logprobs")
    if installation.has_cache_salt:
        paths |= _SALTED
    paths |= {f"structured_output.{kind.value}" for kind in KINDS[options.guided_decoding]}
    return frozenset(paths)


def capabilities(checkpoint: Checkpoint, options: Options, installation: Installation) -> Capabilities:
    """The facts of this checkpoint under these options."""
    blocks = options.kv_cache_max_tokens and options.kv_cache_max_tokens // options.kv_cache_block_tokens
    top_logprobs = TORCH_TOP_LOGPROBS if options.sampler == "torch" else 0
    return Capabilities(
        request_fields=honoured_fields(options, installation),
        max_running=options.max_batch_size,
        max_context_tokens=context_tokens(checkpoint, options),
        kv_blocks=blocks,
        kv_block_tokens=options.kv_cache_block_tokens,
        max_top_logprobs=top_logprobs if options.logprobs else 0,
        reports_cached_tokens=True,
        resume_guarantee=ResumeGuarantee.BEST_EFFORT,
        has_cache_salt=installation.has_cache_salt,
        prefix_caching=caches_prefixes(installation, options),
    )
