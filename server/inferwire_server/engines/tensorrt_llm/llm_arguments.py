"""From our options to the keywords of TensorRT-LLM's LLM. Limits are always explicit: their defaults have moved."""

from __future__ import annotations

from collections.abc import Mapping

from inferwire_server.domain.errors import EngineDown
from inferwire_server.engines.tensorrt_llm.checkpoint import Checkpoint
from inferwire_server.engines.tensorrt_llm.installation import Installation
from inferwire_server.engines.tensorrt_llm.options import Options
from inferwire_server.engines.tensorrt_llm.surface import Construct

_SAMPLERS = {"torch": "TorchSampler", "trtllm": "TRTLLMSampler"}


def context_tokens(checkpoint: Checkpoint, options: Options) -> int:
    """Prompt and output together, in tokens."""
    return min(options.max_context_tokens or checkpoint.max_context_tokens, checkpoint.max_context_tokens)


def input_tokens(checkpoint: Checkpoint, options: Options) -> int:
    """The longest prompt, in tokens: room for one output token is always left."""
    longest = context_tokens(checkpoint, options) - 1
    if not options.chunked_prefill:
        longest = min(longest, options.max_batch_tokens)
    return min(options.max_input_tokens or longest, longest)


def caches_prefixes(installation: Installation, options: Options) -> bool:
    """Whether blocks are reused; never without a salt to keep tenants apart."""
    return options.kv_cache_block_reuse and installation.has_cache_salt


def llm_arguments(checkpoint: Checkpoint, options: Options, installation: Installation) -> dict[str, object]:
    """Keywords for the constructor. Raises EngineDown for what the installed version cannot do."""
    arguments: dict[str, object] = {
        "model": str(checkpoint.folder),
        "skip_tokenizer_init": options.guided_decoding == "none",
        "trust_remote_code": options.trust_remote_code,
        "tensor_parallel_size": options.tensor_parallel_size,
        "pipeline_parallel_size": options.pipeline_parallel_size,
        "dtype": options.dtype,
        "max_batch_size": options.max_batch_size,
        "max_input_len": input_tokens(checkpoint, options),
        "max_seq_len": context_tokens(checkpoint, options),
        "max_num_tokens": options.max_batch_tokens,
        "enable_chunked_prefill": options.chunked_prefill,
        "kv_cache_config": _kv_cache(options, installation),
        "scheduler_config": installation.scheduler_config(
            capacity_scheduler_policy=options.scheduler_policy.upper(),
        ),
        "sampler_type": _SAMPLERS[options.sampler],
        "enable_iter_perf_stats": options.statistics,
        "cuda_graph_config": None,
    }
    if options.cuda_graphs:
        arguments["cuda_graph_config"] = installation.cuda_graph_config(
            max_batch_size=options.max_batch_size, enable_padding=options.cuda_graph_padding
        )
    if options.guided_decoding != "none":
        arguments["guided_decoding_backend"] = options.guided_decoding
    if options.orchestrator != "mpi":
        arguments["orchestrator_type"] = options.orchestrator
    if options.speculation != "none":
        arguments["speculative_config"] = _speculation(options, installation)
    return arguments


def _kv_cache(options: Options, installation: Installation) -> object:
    reuse = caches_prefixes(installation, options)
    return installation.kv_cache_config(
        free_gpu_memory_fraction=options.kv_cache_memory_fraction,
        max_tokens=options.kv_cache_max_tokens,
        tokens_per_block=options.kv_cache_block_tokens,
        dtype=options.kv_cache_dtype,
        enable_block_reuse=reuse,
        enable_partial_reuse=reuse and options.kv_cache_partial_reuse,
        host_cache_size=options.kv_cache_host_bytes or None,
        event_buffer_max_size=options.kv_cache_event_buffer if reuse else 0,
    )


def _speculation(options: Options, installation: Installation) -> object:
    config = installation.speculative_configs.get(options.speculation)
    if config is None:
        raise EngineDown(f"TensorRT-LLM {installation.version} has no speculation method {options.speculation}")
    if options.speculation == "mtp":
        return config(num_nextn_predict_layers=options.speculation_tokens)
    if options.speculation == "ngram":
        return config(
            max_draft_len=options.speculation_tokens, max_matching_ngram_size=options.speculation_ngram_tokens
        )
    return config(max_draft_len=options.speculation_tokens, **_draft_model(config, options.speculation_model))


def _draft_model(config: Construct, folder: str) -> Mapping[str, object]:
    known = getattr(config, "model_fields", {})
    name = "speculative_model" if "speculative_model" in known else "speculative_model_dir"
    return {name: folder}
