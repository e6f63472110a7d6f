"""Results: one mutable object a request, lists that grow in place, queues bound to the loop that submitted."""

# ruff: noqa: TID252 - importable under its own name only while a test runs

from __future__ import annotations

import asyncio
import json
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .utils import RequestError, has_event_loop

if TYPE_CHECKING:
    from ..sampling_params import SamplingParams
    from .worker import GenerationExecutor


@dataclass(slots=True)
class Logprob:
    """One candidate."""

    logprob: float
    rank: int | None = None


@dataclass(slots=True)
class CompletionOutput:
    """One output; the lists are cumulative."""

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    cumulative_logprob: float | None = None
    logprobs: list[Any] = field(default_factory=list)
    prompt_logprobs: list[Any] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    generation_logits: Any = None
    additional_context_outputs: Any = None
    additional_generation_outputs: Any = None
    disaggregated_params: Any = None
    request_perf_metrics: Any = None
    seen_before: int = field(default=0, init=False, repr=False)

    @property
    def length(self) -> int:
        return len(self.token_ids)

    @property
    def text_diff(self) -> str:
        return ""

    @property
    def token_ids_diff(self) -> list[int]:
        """Relative to the latest response of this output, not to the reader: stale when another output had news."""
        return self.token_ids[self.seen_before :]

    @property
    def logprobs_diff(self) -> list[Any]:
        return self.logprobs[self.seen_before :]


@dataclass(frozen=True, slots=True)
class Response:
    """What the worker says of one request."""

    request_id: int
    index: int = 0
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[Any, ...] = ()
    finish: str | None = None
    """END_ID, STOP_WORDS, LENGTH or CANCELLED; None while it runs."""
    cached_tokens: int = 0
    error: str = ""


class AsyncQueue:
    """A deque and an event of the submitting loop."""

    def __init__(self) -> None:
        self._items: deque[Any] = deque()
        self._filled = asyncio.Event()
        self.loop = asyncio.get_running_loop()

    def put(self, item: Any) -> None:
        """From any thread; wakes nobody."""
        self._items.append(item)

    def notify(self) -> None:
        """On the loop."""
        if self._items:
            self._filled.set()

    async def get(self, timeout: float | None = None) -> Any:  # noqa: ASYNC109 - the recorded signature
        assert asyncio.get_running_loop() is self.loop, "iterated on another loop than the one that submitted"
        async with asyncio.timeout(timeout):
            while not self._items:
                self._filled.clear()
                await self._filled.wait()
        return self._items.popleft()


def notify_many(queues: list[AsyncQueue]) -> None:
    """Wake all readers by the first one's loop: all loops are taken to be the same."""
    loops = {queue.loop for queue in queues}
    if not loops:
        return
    assert len(loops) == 1, "requests were submitted on more than one loop"
    loop = loops.pop()

    async def wake() -> None:
        for queue in queues:
            queue.notify()

    if loop.is_running():
        asyncio.run_coroutine_threadsafe(wake(), loop)


class GenerationResult:
    """A request's result so far."""

    def __init__(
        self,
        request_id: int,
        prompt_token_ids: list[int],
        sampling_params: SamplingParams,
        executor: GenerationExecutor,
        handle_error: Callable[[str | None], None],
    ) -> None:
        self.request_id = request_id
        self.prompt_token_ids = prompt_token_ids
        self.sampling_params = sampling_params
        self.aqueue = AsyncQueue() if has_event_loop() else None
        self.cached_tokens = 0
        self.decoding_iter = 0
        self.avg_decoded_tokens_per_iter: float | None = None
        self.metrics_dict: dict[str, float] = {}
        self.context_logits = None
        self.mm_embedding_handle = None
        self.disaggregated_params = None
        self.outputs = [CompletionOutput(index) for index in range(sampling_params.n)]
        self._done = False
        self._aborted = False
        self._executor = weakref.ref(executor)
        self._handle_error = weakref.WeakMethod(handle_error)

    @property
    def finished(self) -> bool:
        return self._done

    def abort(self) -> None:
        self._executor().abort_request(self.request_id)  # type: ignore[union-attr] # dead after a shutdown
        self._aborted = True

    def aborted(self) -> bool:
        return self._aborted

    def result(self, timeout: float | None = None) -> GenerationResult:
        raise NotImplementedError("the adapter never waits without a loop")

    async def aresult(self) -> GenerationResult:
        while not self._done:
            await self._step()
        return self

    def __aiter__(self) -> GenerationResult:
        return self

    async def __anext__(self) -> GenerationResult:
        if self._done:
            raise StopAsyncIteration
        await self._step()
        return self

    async def _step(self) -> None:
        assert self.aqueue is not None, "submitted where no event loop ran"
        self._take(await self.aqueue.get())

    def _take(self, response: Response | BaseException) -> None:
        if isinstance(response, BaseException) or response.error:
            handle_error = self._handle_error()
            assert handle_error is not None, "the executor is gone"
            handle_error(None if isinstance(response, BaseException) else response.error)
        assert isinstance(response, Response)
        output = self.outputs[response.index]
        output.seen_before = len(output.token_ids)
        output.token_ids.extend(response.token_ids)
        output.logprobs.extend(response.logprobs)
        self.cached_tokens = response.cached_tokens
        self.decoding_iter += 1
        if response.finish is None:
            return
        self._done = True
        self._finish(output, response.finish)

    def _finish(self, output: CompletionOutput, finish: str) -> None:
        if finish == "CANCELLED":
            output.finish_reason = "cancelled"
        elif finish == "LENGTH":
            output.finish_reason = "length"  # a stop id in the last place is neither noticed nor cut off
        else:
            output.finish_reason = "stop"  # by its own end id the list keeps it; a stop id is cut off
            stops = self.sampling_params.stop_token_ids or []
            if finish == "STOP_WORDS" and output.token_ids and output.token_ids[-1] in stops:
                output.stop_reason = output.token_ids[-1]
                if not self.sampling_params.include_stop_str_in_output:
                    output.token_ids = output.token_ids[:-1]


class IterationResult:
    """The one reader's end of the statistics: dry after a pause, until the next request is submitted."""

    def __init__(self) -> None:
        self._done = False
        self._timeout: float | None = 2
        self.aqueue = AsyncQueue()
        self._readers = 0

    def set_timeout(self, timeout: float | None) -> None:
        self._timeout = timeout

    def mark_undone(self) -> None:
        self._done = False

    def get_results(self) -> list[dict[str, Any]]:
        raise NotImplementedError("the adapter never waits without a loop")

    def __aiter__(self) -> IterationResult:
        return self

    async def __anext__(self) -> Any:
        if self._done:
            raise StopAsyncIteration
        self._readers += 1
        assert self._readers == 1, "a second reader steals from the first"
        try:
            return json.loads(await self.aqueue.get(self._timeout))
        except TimeoutError:
            self._done = True
            raise StopAsyncIteration from None
        finally:
            self._readers -= 1


__all__ = ["CompletionOutput", "GenerationResult", "IterationResult", "Logprob", "RequestError"]
