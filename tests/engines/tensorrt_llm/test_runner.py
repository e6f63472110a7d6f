"""The engine-loop side alone, over the smallest engine that can be written down."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from inferwire_server.domain.engine import EngineEvent, Failed
from inferwire_server.domain.errors import EngineDown, InvalidRequest, ServiceError
from inferwire_server.engines.tensorrt_llm.cursor import OutputCursor
from inferwire_server.engines.tensorrt_llm.installation import Installation, load_installation
from inferwire_server.engines.tensorrt_llm.options import Options
from inferwire_server.engines.tensorrt_llm.request_arguments import RequestArguments
from inferwire_server.engines.tensorrt_llm.runner import Parcel, Runner
from inferwire_server.engines.tensorrt_llm.stream import RunningStream

from tests.engines.tensorrt_llm.recorded_names import members_of, recorded
from tests.engines.tensorrt_llm.running_engine import BOUND_S, request
from tests.engines.tensorrt_llm.toy_checkpoint import toy_checkpoint

pytestmark = pytest.mark.usefixtures("standin")


class Witness:
    """Passes every question on to another object and remembers the name."""

    def __init__(self, answers: object, asked: set[str]) -> None:
        self._answers = answers
        self._asked = asked

    def __getattr__(self, name: str) -> Any:
        self._asked.add(name)
        return getattr(self._answers, name)


@dataclass
class Completion:
    """One output."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[Any] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: int | None = None


class Output:
    """A request of two steps; what it raises and how it ends can be chosen."""

    def __init__(
        self, *, raises: Exception | None = None, abort_raises: Exception | None = None, finish_reason: str = "length"
    ) -> None:
        self.outputs = [Completion()]
        self.cached_tokens = 0
        self.aborts = 0
        self._raises = raises
        self._abort_raises = abort_raises
        self._finish_reason = finish_reason
        self.may_end = asyncio.Event()

    def abort(self) -> None:
        self.aborts += 1
        if self._abort_raises is not None:
            raise self._abort_raises

    async def __aiter__(self) -> AsyncIterator[Output]:
        self.outputs[0].token_ids.append(300)
        yield self
        await self.may_end.wait()
        if self._raises is not None:
            raise self._raises
        self.outputs[0].token_ids.append(301)
        self.outputs[0].finish_reason = self._finish_reason
        yield self


class Llm:
    """Gives the outputs it was made with, in order."""

    def __init__(self, *outputs: Any) -> None:
        self._outputs = list(outputs)

    def generate_async(self, **arguments: object) -> Any:
        output = self._outputs.pop(0)
        if isinstance(output, Exception):
            raise output
        return output

    def get_stats_async(self, timeout: float) -> Any:
        raise NotImplementedError

    def get_kv_cache_events_async(self, timeout: float) -> Any:
        raise NotImplementedError

    def shutdown(self) -> None:
        raise NotImplementedError


class Running:
    """A runner on this loop, with what it delivered."""

    def __init__(self, llm: Any) -> None:
        self.parcels: list[Parcel] = []
        self.deaths: list[str] = []
        self._changed = asyncio.Event()
        installation: Installation = load_installation()
        self.runner = Runner(
            llm,
            installation,
            RequestArguments(toy_checkpoint(), Options(), installation),
            deliver=self._deliver,
            on_fatal=self.deaths.append,
        )

    def _deliver(self, batch: list[Parcel]) -> None:
        self.parcels += batch
        self._changed.set()

    def begin(self) -> RunningStream:
        cursor = OutputCursor(
            end_token_ids=frozenset({2}), stop_token_ids=frozenset(), vocabulary_size=1024, top_logprobs=None
        )
        stream = RunningStream(request(), lambda event: None, cursor=cursor, blocks=1, on_cancel=lambda stream: None)
        self.runner.begin(stream)
        return stream

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(BOUND_S):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    async def last_event(self) -> EngineEvent:
        await self.until(lambda: any(event is None for _, event in self.parcels))
        event = self.parcels[-1][1]
        assert event is not None
        return event


async def test_only_recorded_names_are_asked_of_a_request_and_its_outputs() -> None:
    asked: dict[str, set[str]] = {"LLM": set(), "RequestOutput": set(), "CompletionOutput": set()}

    class WitnessedOutput(Output):
        async def __aiter__(self) -> AsyncIterator[Any]:
            async for step in super().__aiter__():
                seen = Witness(step, asked["RequestOutput"])
                step.outputs = [Witness(step.outputs[0], asked["CompletionOutput"])]  # type: ignore[list-item]
                yield seen

    output = WitnessedOutput()
    output.may_end.set()
    running = Running(Witness(Llm(output), asked["LLM"]))
    running.begin()
    await running.last_event()

    assert asked["LLM"] == {"generate_async"}
    assert {name: names - members_of(name) for name, names in asked.items()} == {name: set() for name in asked}
    assert {"token_ids", "finish_reason"} <= asked["CompletionOutput"]
    assert recorded()["version"] == "1.2.1"


async def test_the_place_is_given_back_before_the_end_is_told() -> None:
    output = Output()
    output.may_end.set()
    running = Running(Llm(output))
    running.begin()
    await running.last_event()
    assert [type(event).__name__ for _, event in running.parcels[-3:]] == ["Tokens", "NoneType", "Finished"]


async def test_an_abort_is_sent_once_and_may_fail() -> None:
    output = Output(abort_raises=AttributeError("'NoneType' object has no attribute 'abort_request'"))
    running = Running(Llm(output))
    stream = running.begin()
    await running.until(lambda: bool(running.parcels))
    running.runner.abort(stream)
    running.runner.abort(stream)
    assert (output.aborts, running.runner.aborts) == (1, 1)
    output.may_end.set()
    await running.last_event()
    assert running.deaths == []


async def test_an_abort_after_the_end_goes_nowhere() -> None:
    output = Output()
    output.may_end.set()
    running = Running(Llm(output))
    stream = running.begin()
    await running.last_event()
    running.runner.abort(stream)
    assert output.aborts == 0


async def test_what_is_abandoned_lets_go() -> None:
    running = Running(Llm(Output()))
    stream = running.begin()
    await running.until(lambda: bool(running.parcels))
    running.runner.abandon(stream)
    await running.until(lambda: running.parcels[-1] == (stream, None))
    assert running.runner.tasks == 0


@pytest.mark.parametrize(
    ("error", "kind", "is_death"),
    [
        (ValueError("prompt length exceeds max_num_tokens"), InvalidRequest, False),
        (TypeError("inputs is a tuple"), TypeError, False),
        (IndexError("list index out of range"), IndexError, False),
        (RuntimeError("LLM is shutting down"), EngineDown, True),
        (OSError("broken pipe"), EngineDown, True),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
async def test_each_error_at_submission_has_its_class(error: Exception, kind: type, is_death: bool) -> None:
    running = Running(Llm(error))
    running.begin()
    event = await running.last_event()
    assert isinstance(event, Failed)
    assert isinstance(event.error, kind)
    assert bool(running.deaths) is is_death


async def test_a_request_error_is_told_from_the_engines_own_although_both_are_runtime_errors() -> None:
    request_error = load_installation().request_error("lora failed")
    outputs = [Output(raises=request_error), Output(raises=RuntimeError("CUDA error"))]
    running = Running(Llm(*outputs))
    deaths = []
    for output in outputs:
        running.parcels.clear()
        output.may_end.set()
        running.begin()
        event = await running.last_event()
        assert isinstance(event, Failed)
        deaths.append((isinstance(event.error, ServiceError), len(running.deaths)))
    assert deaths == [(False, 0), (True, 1)]


async def test_an_end_without_an_ordinary_reason_is_our_fault() -> None:
    output = Output(finish_reason="timeout")
    output.may_end.set()
    running = Running(Llm(output))
    running.begin()
    event = await running.last_event()
    assert isinstance(event, Failed)
    assert "timeout" in str(event.error)
