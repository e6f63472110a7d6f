"""The engine's options: typed, checked before anything is loaded, each mapped to the names TensorRT-LLM knows."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields
from typing import Any, get_args, get_type_hints

from inferwire_server.domain.errors import EngineDown

_POLICIES = ("guaranteed_no_evict", "max_utilization")
_GRAMMARS = ("none", "xgrammar", "llguidance")
_SAMPLERS = ("torch", "trtllm")
_METHODS = ("none", "ngram", "eagle", "mtp", "draft_target")
_ORCHESTRATORS = ("mpi", "rpc", "ray")
_KV_DTYPES = ("auto", "fp8", "nvfp4")
_DTYPES = ("auto", "float16", "bfloat16", "float32")


def _option(
    default: object,
    maps_to: str = "",
    *,
    choices: tuple[str, ...] = (),
    least: float | None = None,
    most: float | None = None,
    above: float | None = None,
) -> Any:
    """A field with its bounds; `maps_to` is the parameter of TensorRT-LLM's LLM that carries it."""
    return field(
        default=default,
        metadata={"maps_to": maps_to, "choices": choices, "least": least, "most": most, "above": above},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How the model is loaded and served. Sizes are tokens unless the name says otherwise, times seconds."""

    tensor_parallel_size: int = _option(1, "tensor_parallel_size", least=1)
    """GPUs that share each layer."""
    pipeline_parallel_size: int = _option(1, "pipeline_parallel_size", least=1)
    """GPUs that hold consecutive layers."""
    max_batch_size: int = _option(64, "max_batch_size", least=1)
    """Most sequences in one batch; this server never gives the engine more, so its own queue stays empty."""
    max_batch_tokens: int = _option(8192, "max_num_tokens", least=1)
    """Most tokens of one step, prompts and outputs together."""
    max_input_tokens: int | None = _option(None, "max_input_len", least=1)
    """Longest prompt; unset is the context less one."""
    max_context_tokens: int | None = _option(None, "max_seq_len", least=2)
    """Prompt and output together; unset is the checkpoint's own limit."""
    kv_cache_memory_fraction: float = _option(0.85, "kv_cache_config.free_gpu_memory_fraction", above=0.0, most=0.98)
    """Share of the GPU memory left after loading that the KV cache takes."""
    kv_cache_max_tokens: int | None = _option(None, "kv_cache_config.max_tokens", least=32)
    """Bound on the KV cache beside the memory fraction."""
    kv_cache_block_tokens: int = _option(32, "kv_cache_config.tokens_per_block", least=1)
    kv_cache_dtype: str = _option("auto", "kv_cache_config.dtype", choices=_KV_DTYPES)
    kv_cache_block_reuse: bool = _option(True, "kv_cache_config.enable_block_reuse")
    """Prefix caching."""
    kv_cache_partial_reuse: bool = _option(True, "kv_cache_config.enable_partial_reuse")
    kv_cache_host_bytes: int = _option(0, "kv_cache_config.host_cache_size", least=0)
    """Host memory for blocks pushed out of the GPU. Off: in 1.2.0rc0 outputs held other prompts' tokens."""
    kv_cache_event_buffer: int = _option(0, "kv_cache_config.event_buffer_max_size", least=0)
    """Cache events kept for the event gauges; 0 switches them off."""
    chunked_prefill: bool = _option(True, "enable_chunked_prefill")
    """Whether long prompts share steps with running outputs; without it a prompt must fit max_batch_tokens."""
    scheduler_policy: str = _option(
        "guaranteed_no_evict", "scheduler_config.capacity_scheduler_policy", choices=_POLICIES
    )
    cuda_graphs: bool = _option(True, "cuda_graph_config")
    cuda_graph_padding: bool = _option(True, "cuda_graph_config.enable_padding")
    """Whether batches are rounded up to a captured size."""
    guided_decoding: str = _option("none", "guided_decoding_backend", choices=_GRAMMARS)
    """What compiles grammars; none refuses structured output."""
    sampler: str = _option("torch", "sampler_type", choices=_SAMPLERS)
    """`trtllm` honours seed, min_p and penalties; `torch` is the faster default, which ignores them on 1.2."""
    logprobs: bool = _option(False)
    """Whether `output.top_logprobs` is honoured; off until a batch that mixes requests with and without it has run
    on the hardware in use."""
    speculation: str = _option("none", "speculative_config", choices=_METHODS)
    speculation_tokens: int = _option(4, "speculative_config.max_draft_len", least=1)
    """Tokens drafted a step."""
    speculation_ngram_tokens: int = _option(2, "speculative_config.max_matching_ngram_size", least=1)
    """Longest run of tokens looked up in earlier text, for ngram."""
    speculation_model: str = _option("", "speculative_config.speculative_model")
    """Folder of the draft model, for eagle and draft_target."""
    dtype: str = _option("auto", "dtype", choices=_DTYPES)
    """Of weights that are not quantised; a quantised checkpoint carries its own scheme."""
    trust_remote_code: bool = _option(False, "trust_remote_code")
    orchestrator: str = _option("mpi", "orchestrator_type", choices=_ORCHESTRATORS)
    """What starts the workers; rpc and ray are prototypes of TensorRT-LLM."""
    statistics: bool = _option(True, "enable_iter_perf_stats")
    """Whether the engine's iteration statistics feed gauges."""
    start_timeout_s: float = _option(1800.0, above=0.0)
    silence_s: float = _option(30.0, above=0.0)
    """No step for this long while something runs: the engine is dead."""
    loop_stuck_s: float = _option(10.0, above=0.0)
    """The engine's event loop answers nothing for this long: the engine is dead."""
    cancel_grace_s: float = _option(2.0, above=0.0)
    """How long a cancelled request waits for the engine's word before its stream ends without it."""
    cancel_hold_s: float = _option(60.0, above=0.0)
    """How long its place in the batch is kept after that."""
    teardown_s: float = _option(15.0, above=0.0)
    """Time for an orderly unload before the process gives up on it."""
    exit_s: float = _option(20.0, above=0.0)
    """After the engine's death the process is gone within this, whatever still blocks."""

    def __post_init__(self) -> None:
        for item in fields(self):
            _check(item, getattr(self, item.name))
        if self.speculation in ("eagle", "draft_target") and not self.speculation_model:
            raise EngineDown(f"speculation = {self.speculation} needs speculation_model, the draft model's folder")

    @classmethod
    def from_mapping(cls, given: Mapping[str, object]) -> Options:
        """From a file, the environment or flags; text is read as the option's type.

        Raises EngineDown that names the option, what was given, and near names for an unknown one.
        """
        known = {item.name: item for item in fields(cls)}
        hints = get_type_hints(cls)
        values: dict[str, Any] = {}
        for name, value in given.items():
            if name not in known:
                raise EngineDown(_unknown(name, known))
            values[name] = _convert(name, value, hints[name])
        return cls(**values)


def _unknown(name: str, known: Mapping[str, Field[Any]]) -> str:
    same = [ours for ours, item in known.items() if item.metadata["maps_to"].rpartition(".")[2] == name]
    near = same or difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else f"the options are {', '.join(sorted(known))}"
    return f"unknown option of the TensorRT-LLM engine: {name}; {hint}"


def _convert(name: str, value: object, hint: Any) -> object:
    kinds = [kind for kind in get_args(hint) if kind is not type(None)] or [hint]
    kind = kinds[0]
    if value is None and type(None) in get_args(hint):
        return None
    if isinstance(value, kind) and (kind is bool or not isinstance(value, bool)):
        return value
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if isinstance(value, str):
        try:
            return {"true": True, "false": False}[value.lower()] if kind is bool else kind(value)
        except (KeyError, ValueError):
            pass
    wanted = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}[kind]
    raise EngineDown(f"option {name}={value!r}: expected {wanted}")


def _check(item: Field[Any], value: Any) -> None:
    bounds = item.metadata
    if value is None:
        return
    if bounds["choices"] and value not in bounds["choices"]:
        near = difflib.get_close_matches(str(value), bounds["choices"], n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise EngineDown(f"option {item.name}={value!r}: expected one of {', '.join(bounds['choices'])}{hint}")
    if (
        (bounds["least"] is not None and value < bounds["least"])
        or (bounds["most"] is not None and value > bounds["most"])
        or (bounds["above"] is not None and not value > bounds["above"])
    ):
        wanted = " and ".join(
            f"{word} {bounds[key]}"
            for key, word in (("least", "at least"), ("above", "above"), ("most", "at most"))
            if bounds[key] is not None
        )
        raise EngineDown(f"option {item.name}={value!r}: must be {wanted}")
