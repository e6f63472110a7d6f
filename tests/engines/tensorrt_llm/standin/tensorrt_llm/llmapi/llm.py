"""The LLM API: a constructor with process-wide side effects, and requests that are checked as the real ones are."""

# ruff: noqa: TID252 - importable under its own name only while a test runs

from __future__ import annotations

import atexit
import sys
import threading
import weakref
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from ..disaggregated_params import DisaggregatedParams
from ..executor.request import LoRARequest
from ..executor.result import GenerationResult, IterationResult
from ..executor.worker import GenerationExecutor, Settings
from ..sampling_params import SamplingParams
from ..scheduling_params import SchedulingParams
from ..temperament import Record, Temperament, records
from .llm_args import KvCacheConfig, TorchLlmArgs


class RequestOutput(GenerationResult):
    """Not to be constructed by users."""

    def __init__(self) -> None:
        raise RuntimeError("RequestOutput is made by the LLM")

    @classmethod
    def _from_generation_result(cls, result: GenerationResult) -> RequestOutput:
        made = cls.__new__(cls)
        made.__dict__.update(result.__dict__)
        return made

    @property
    def prompt(self) -> str | None:
        return None


class LLM:
    """One loaded model."""

    def __init__(
        self,
        model: str | Path,
        tokenizer: Any = None,
        tokenizer_mode: str = "auto",
        skip_tokenizer_init: bool = False,
        trust_remote_code: bool = False,
        tensor_parallel_size: int = 1,
        dtype: str = "auto",
        revision: str | None = None,
        tokenizer_revision: str | None = None,
        **kwargs: Any,
    ) -> None:
        for name in kwargs:
            if name not in TorchLlmArgs.model_fields:
                raise ValueError(f"LLM got invalid argument: {name}")
        folder = Path(model)
        self._folder = folder
        self.args = TorchLlmArgs(**kwargs)
        self.tokenizer = None if skip_tokenizer_init else tokenizer
        self.llm_id = f"standin-{id(self):x}"
        self.mpi_session = None
        temperament = Temperament.of(folder)
        if temperament.load_hangs:
            threading.Event().wait()
        if temperament.load_fails:
            raise RuntimeError(temperament.load_fails)
        self._writes_report = temperament.writes_report
        self._record = Record(constructor={**kwargs, "model": model, "tensor_parallel_size": tensor_parallel_size})
        records.append(self._record)
        self._executor: GenerationExecutor | None = GenerationExecutor(temperament, self._settings(), self._record)
        sys.excepthook = _shut_down_everything
        atexit.register(_at_exit, weakref.ref(self))

    def generate_async(
        self,
        inputs: Any,
        sampling_params: SamplingParams | None = None,
        lora_request: LoRARequest | None = None,
        prompt_adapter_request: Any = None,
        streaming: bool = False,
        kv_cache_retention_config: Any = None,
        disaggregated_params: DisaggregatedParams | None = None,
        _postproc_params: Any = None,
        scheduling_params: SchedulingParams | None = None,
        cache_salt: str | None = None,
    ) -> RequestOutput:
        if self._executor is None or self._executor.is_shutdown():
            raise RuntimeError("LLM is shutting down")
        sampling_params = SamplingParams() if sampling_params is None else sampling_params
        if not isinstance(sampling_params, SamplingParams):
            raise TypeError(f"sampling_params is a {type(sampling_params).__name__}")
        if sampling_params.end_id is None and self.tokenizer is None:
            raise ValueError("without a tokenizer, end_id must be given")
        prompt = inputs["prompt_token_ids"] if isinstance(inputs, dict) else inputs
        if not isinstance(prompt, list):
            raise TypeError(f"inputs is a {type(prompt).__name__}")
        limit = self.args.max_num_tokens
        if limit and not self.args.enable_chunked_prefill and len(prompt) > limit:
            raise ValueError(f"prompt length {len(prompt)} exceeds max_num_tokens {limit}")
        assert isinstance(prompt[0], int)
        sampling_params.take()
        self._remember(sampling_params, streaming=streaming, cache_salt=cache_salt)
        result = self._executor.submit(list(prompt), sampling_params, cache_salt)
        return RequestOutput._from_generation_result(result)

    def generate(
        self,
        inputs: Any,
        sampling_params: SamplingParams | None = None,
        use_tqdm: bool = True,
        lora_request: LoRARequest | None = None,
        prompt_adapter_request: Any = None,
        kv_cache_retention_config: Any = None,
        disaggregated_params: DisaggregatedParams | None = None,
        scheduling_params: SchedulingParams | None = None,
        cache_salt: str | None = None,
    ) -> RequestOutput:
        raise NotImplementedError("the adapter never waits without a loop")

    def get_stats(self, timeout: float | None = 2) -> list[dict[str, Any]]:
        raise NotImplementedError("the adapter never waits without a loop")

    def get_stats_async(self, timeout: float | None = 2) -> Any:
        assert self._executor is not None
        return self._executor.aget_stats(timeout)

    def get_kv_cache_events(self, timeout: float | None = 2) -> list[dict[str, Any]]:
        raise NotImplementedError("the adapter never waits without a loop")

    def get_kv_cache_events_async(self, timeout: float | None = 2) -> IterationResult:
        assert self._executor is not None
        return self._executor.aget_kv_events(timeout)

    def shutdown(self) -> None:
        if self._executor is not None:
            self._executor.shutdown()
            self._executor = None
            self._record.is_shut_down = True
            if self._writes_report:
                self._record.write(self._folder)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()

    def _settings(self) -> Settings:
        args = self.args
        cache = args.kv_cache_config or KvCacheConfig()
        assert isinstance(cache, KvCacheConfig)
        return Settings(
            max_batch_size=args.max_batch_size or 2048,
            max_seq_len=args.max_seq_len or 2048,
            tokens_per_block=cache.tokens_per_block,
            reuses_blocks=cache.enable_block_reuse,
            extends_sampling=args.sampler_type == "TRTLLMSampler",
            has_statistics=args.enable_iter_perf_stats,
            has_events=cache.event_buffer_max_size > 0 and cache.enable_block_reuse,
        )

    def _remember(self, sampling: SamplingParams, **arguments: Any) -> None:
        given = {name: getattr(sampling, name) for name in sampling.__slots__ if hasattr(sampling, name)}
        self._record.sampling.append(given)
        self._record.arguments.append(arguments)


def _shut_down_everything(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """The hook that the constructor leaves behind in the process."""
    sys.__excepthook__(kind, error, trace)


def forget_exit_hooks() -> None:
    """For a process that goes on after its engines hung: their hooks would hang its own end."""
    atexit.unregister(_at_exit)


def _at_exit(reference: weakref.ref[LLM]) -> None:
    llm = reference()
    if llm is not None:
        llm.shutdown()
