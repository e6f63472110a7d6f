"""Nested configurations: keyword-only models that forbid what they do not know."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", protected_namespaces=())


class KvCacheConfig(_Strict):
    """The cache of keys and values."""

    enable_block_reuse: bool = True
    max_tokens: int | None = None
    max_attention_window: list[int] | None = None
    sink_token_length: int | None = None
    free_gpu_memory_fraction: float | None = 0.9
    host_cache_size: int | None = None
    onboard_blocks: bool = True
    cross_kv_cache_fraction: float | None = None
    secondary_offload_min_priority: int | None = None
    event_buffer_max_size: int = 0
    attention_dp_events_gather_period_ms: int = 5
    enable_partial_reuse: bool = True
    copy_on_partial_reuse: bool = True
    use_uvm: bool = False
    max_gpu_total_bytes: int = 0
    dtype: str = "auto"
    mamba_ssm_cache_dtype: str = "auto"
    tokens_per_block: int = 32


class SchedulerConfig(_Strict):
    """What runs when the cache is short."""

    capacity_scheduler_policy: str = "GUARANTEED_NO_EVICT"
    context_chunking_policy: str | None = None
    dynamic_batch_config: Any = None


class CudaGraphConfig(_Strict):
    """Captured batch sizes."""

    batch_sizes: list[int] | None = None
    max_batch_size: int = 0
    enable_padding: bool = False


class DecodingBaseConfig(_Strict):
    """What all speculation methods share."""

    max_draft_len: int | None = None
    speculative_model_dir: str | None = None
    max_concurrency: int | None = None


class NGramDecodingConfig(DecodingBaseConfig):
    """Drafts from earlier text."""

    max_matching_ngram_size: int = 0
    is_keep_all: bool = True
    is_use_oldest: bool = True
    is_public_pool: bool = True


class EagleDecodingConfig(DecodingBaseConfig):
    """Drafts by a small head."""

    eagle3_one_model: bool | None = True


class DraftTargetDecodingConfig(DecodingBaseConfig):
    """Drafts by a second model."""


class MTPDecodingConfig(DecodingBaseConfig):
    """Drafts by the model's own extra layers."""

    num_nextn_predict_layers: int = 1
    use_relaxed_acceptance_for_thinking: bool = False
    relaxed_topk: int = 1
    relaxed_delta: float = 0.0


class TorchLlmArgs(_Strict):
    """Keywords of LLM; in the real package the named parameters of its constructor are among these fields too."""

    pipeline_parallel_size: int = 1
    context_parallel_size: int = 1
    gpus_per_node: Any = None
    moe_tensor_parallel_size: Any = None
    moe_expert_parallel_size: Any = None
    moe_cluster_parallel_size: Any = None
    enable_attention_dp: bool = False
    cp_config: Any = None
    max_batch_size: int | None = None
    max_input_len: int | None = None
    max_seq_len: int | None = None
    max_num_tokens: int | None = 8192
    max_beam_width: int | None = None
    scheduler_config: Any = None
    enable_chunked_prefill: bool = False
    disable_overlap_scheduler: bool = False
    batch_wait_timeout_ms: int = 0
    batch_wait_timeout_iters: int = 0
    batch_wait_max_tokens_ratio: int = 0
    stream_interval: int = 1
    kv_cache_config: Any = None
    peft_cache_config: Any = None
    cache_transceiver_config: Any = None
    kv_connector_config: Any = None
    speculative_config: Any = None
    guided_decoding_backend: Any = None
    sampler_type: str = "auto"
    batched_logits_processor: Any = None
    enable_lora: bool = False
    lora_config: Any = None
    cuda_graph_config: Any = None
    torch_compile_config: Any = None
    return_perf_metrics: bool = False
    enable_iter_perf_stats: bool = False
    enable_iter_req_stats: bool = False
    iter_stats_max_iterations: Any = None
    request_stats_max_iterations: Any = None
    perf_metrics_max_requests: int = 0
    print_iter_log: bool = False
    orchestrator_type: Any = None
    num_postprocess_workers: int = 0
    postprocess_tokenizer_dir: Any = None
    garbage_collection_gen0_threshold: int = 20000
    load_format: Any = None
    checkpoint_format: Any = None
    attn_backend: str = "TRTLLM"
    backend: str = "pytorch"
