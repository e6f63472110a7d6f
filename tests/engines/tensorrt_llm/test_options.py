"""Options: typed, bounded, and explained when they are wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from inferwire_server.domain.errors import EngineDown
from inferwire_server.engines.tensorrt_llm.checkpoint import Checkpoint
from inferwire_server.engines.tensorrt_llm.installation import load_installation
from inferwire_server.engines.tensorrt_llm.llm_arguments import input_tokens, llm_arguments
from inferwire_server.engines.tensorrt_llm.options import Options

CHECKPOINT = Checkpoint(
    folder=Path("model"), vocabulary_size=1024, end_token_ids=frozenset({2}), max_context_tokens=4096
)


def arguments(**options: Any) -> dict[str, Any]:
    """What the LLM of the stand-in would be constructed with."""
    return llm_arguments(CHECKPOINT, Options(**options), load_installation())


def test_text_is_read_as_the_options_type() -> None:
    given = {"max_batch_size": "8", "kv_cache_memory_fraction": "0.5", "cuda_graphs": "false", "silence_s": 3}
    options = Options.from_mapping(given)
    assert options == Options(max_batch_size=8, kv_cache_memory_fraction=0.5, cuda_graphs=False, silence_s=3.0)


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("max_batch_sise", "did you mean max_batch_size"),
        ("kv_cache_fraction", "did you mean kv_cache_memory_fraction"),
        ("free_gpu_memory_fraction", "did you mean kv_cache_memory_fraction"),
        ("tokens_per_block", "did you mean kv_cache_block_tokens"),
        ("zzz", "the options are cancel_grace_s, "),
    ],
)
def test_an_unknown_option_is_refused_with_near_names(name: str, near: str) -> None:
    with pytest.raises(EngineDown, match=f"unknown option of the TensorRT-LLM engine: {name}; {near}"):
        Options.from_mapping({name: 1})


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"max_batch_size": "many"}, "option max_batch_size='many': expected a whole number"),
        ({"max_batch_size": True}, "option max_batch_size=True: expected a whole number"),
        ({"cuda_graphs": "maybe"}, "option cuda_graphs='maybe': expected true or false"),
        ({"max_batch_size": 0}, "option max_batch_size=0: must be at least 1"),
        ({"kv_cache_memory_fraction": 1.5}, "option kv_cache_memory_fraction=1.5: must be above 0.0 and at most 0.98"),
        ({"sampler": "trllm"}, "expected one of torch, trtllm; did you mean trtllm"),
        ({"speculation": "eagle"}, "speculation = eagle needs speculation_model"),
    ],
)
def test_a_bad_value_is_refused_with_what_was_expected(given: dict[str, object], complaint: str) -> None:
    with pytest.raises(EngineDown, match=complaint):
        Options.from_mapping(given)


@pytest.mark.usefixtures("standin")
def test_limits_are_always_explicit() -> None:
    given = arguments(max_context_tokens=1000, max_batch_tokens=512)
    assert {name: given[name] for name in ("max_batch_size", "max_input_len", "max_seq_len", "max_num_tokens")} == {
        "max_batch_size": 64,
        "max_input_len": 999,
        "max_seq_len": 1000,
        "max_num_tokens": 512,
    }


@pytest.mark.usefixtures("standin")
def test_the_checkpoints_context_is_the_ceiling() -> None:
    assert arguments(max_context_tokens=10**6)["max_seq_len"] == 4096


def test_without_chunked_prefill_a_prompt_must_fit_one_step() -> None:
    assert input_tokens(CHECKPOINT, Options(chunked_prefill=False, max_batch_tokens=256)) == 256
    assert input_tokens(CHECKPOINT, Options(chunked_prefill=True, max_batch_tokens=256)) == 4095


@pytest.mark.usefixtures("standin")
def test_the_host_cache_is_off_unless_asked_for() -> None:
    assert arguments()["kv_cache_config"].host_cache_size is None
    assert arguments(kv_cache_host_bytes=2**30)["kv_cache_config"].host_cache_size == 2**30


@pytest.mark.usefixtures("standin")
def test_partial_reuse_and_events_need_reuse() -> None:
    cache = arguments(kv_cache_block_reuse=False, kv_cache_event_buffer=16)["kv_cache_config"]
    assert (cache.enable_block_reuse, cache.enable_partial_reuse, cache.event_buffer_max_size) == (False, False, 0)


@pytest.mark.usefixtures("standin")
@pytest.mark.parametrize(
    ("options", "kind", "fields"),
    [
        ({"speculation": "ngram"}, "NGramDecodingConfig", {"max_draft_len": 4, "max_matching_ngram_size": 2}),
        ({"speculation": "mtp", "speculation_tokens": 2}, "MTPDecodingConfig", {"num_nextn_predict_layers": 2}),
        (
            {"speculation": "eagle", "speculation_model": "draft"},
            "EagleDecodingConfig",
            {"max_draft_len": 4, "speculative_model_dir": "draft"},
        ),
        (
            {"speculation": "draft_target", "speculation_model": "draft"},
            "DraftTargetDecodingConfig",
            {"max_draft_len": 4, "speculative_model_dir": "draft"},
        ),
    ],
)
def test_speculation_is_configured_by_its_own_class(options: dict[str, Any], kind: str, fields: dict[str, Any]) -> None:
    config = arguments(**options)["speculative_config"]
    assert type(config).__name__ == kind
    assert {name: getattr(config, name) for name in fields} == fields


@pytest.mark.usefixtures("standin")
def test_every_other_option_reaches_the_constructor() -> None:
    given = arguments(
        tensor_parallel_size=4,
        pipeline_parallel_size=2,
        scheduler_policy="max_utilization",
        sampler="trtllm",
        guided_decoding="xgrammar",
        orchestrator="ray",
        dtype="bfloat16",
        cuda_graphs=False,
        statistics=False,
    )
    assert given["scheduler_config"].capacity_scheduler_policy == "MAX_UTILIZATION"
    assert given["cuda_graph_config"] is None
    assert (
        given.items()
        >= {
            "tensor_parallel_size": 4,
            "pipeline_parallel_size": 2,
            "sampler_type": "TRTLLMSampler",
            "guided_decoding_backend": "xgrammar",
            "skip_tokenizer_init": False,
            "orchestrator_type": "ray",
            "dtype": "bfloat16",
            "enable_iter_perf_stats": False,
        }.items()
    )
