"""The part of TensorRT-LLM 1.2 that the adapter touches, as types. What is not here, mypy does not let it use."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Protocol


class Logprob(Protocol):
    """One candidate's natural-log probability."""

    @property
    def logprob(self) -> float: ...

    @property
    def rank(self) -> int | None: ...


class CompletionOutput(Protocol):
    """One output so far. The lists are cumulative, and the same object comes back at every step."""

    @property
    def token_ids(self) -> Sequence[int]: ...

    @property
    def logprobs(self) -> Sequence[Mapping[int, Logprob] | float] | None: ...

    @property
    def finish_reason(self) -> str | None: ...

    @property
    def stop_reason(self) -> int | str | None: ...


class RequestOutput(Protocol):
    """A request that was submitted; iterates over itself, once a step, on the loop that submitted it."""

    @property
    def outputs(self) -> Sequence[CompletionOutput]: ...

    @property
    def cached_tokens(self) -> int: ...

    def abort(self) -> None: ...

    def __aiter__(self) -> AsyncIterator[RequestOutput]: ...


class Llm(Protocol):
    """The LLM API's engine object."""

    def generate_async(self, **arguments: object) -> RequestOutput: ...

    def get_stats_async(self, timeout: float) -> AsyncIterator[object]: ...

    def get_kv_cache_events_async(self, timeout: float) -> AsyncIterator[object]: ...

    def shutdown(self) -> None: ...


class Construct(Protocol):
    """A class of the package, called with keywords only."""

    def __call__(self, **arguments: object) -> object: ...


class ConstructLlm(Protocol):
    """The LLM class."""

    def __call__(self, **arguments: object) -> Llm: ...
