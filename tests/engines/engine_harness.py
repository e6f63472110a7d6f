"""What every engine's conformance test gives, and what the promises are written with."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, ClassVar

import pytest
import pytest_asyncio
from inferwire_server.domain.engine import Engine, EngineRequest
from inferwire_server.domain.generation import Sampling

from tests.engines.event_recorder import EventRecorder

GREEDY = Sampling(temperature=0.0)
_ids = itertools.count()


@pytest.mark.asyncio(loop_scope="class")
class EngineHarness:
    """Subclass per engine; give the class variables and `make_engine`.

    One engine is started per class, on a loop of the class's own, and every test must leave it as idle as it found it.
    """

    engine_name: ClassVar[str]
    vocabulary_size: ClassVar[int]
    end_token_ids: ClassVar[frozenset[int]]
    prompts: ClassVar[Sequence[Sequence[int]]]
    """At least eight different prompts that do not end at once."""
    long_prompt: ClassVar[Sequence[int]]
    """At least four KV blocks long."""
    ending_prompt: ClassVar[Sequence[int] | None] = None
    """A prompt whose greedy output ends by itself within 64 tokens, if the engine has one."""
    bound_s: ClassVar[float] = 30.0
    """No single wait of a test is longer; a bound against hangs, not a speed."""
    output_tokens: ClassVar[int] = 24
    sampled_temperature: ClassVar[float] = 1.0
    """A temperature at which outputs of `output_tokens` tokens from different seeds differ."""
    mixed_requests: ClassVar[int] = 100
    not_shown: ClassVar[frozenset[str]] = frozenset()
    """Honoured fields or capabilities whose effect this set-up cannot show, as in a stand-in without a model."""

    @classmethod
    async def make_engine(cls) -> Engine:
        """A new engine that has not been started."""
        raise NotImplementedError

    @classmethod
    def text_of(cls, token_ids: Sequence[int]) -> str:
        """The text of output tokens; needed where grammars are honoured."""
        raise NotImplementedError

    @pytest_asyncio.fixture(loop_scope="class", scope="class")
    @classmethod
    async def engine(cls) -> AsyncIterator[Engine]:
        engine = await cls.make_engine()
        await engine.start()
        yield engine
        await engine.shutdown(grace_s=0.0)

    @pytest_asyncio.fixture(loop_scope="class")
    async def fresh_engine(self) -> AsyncIterator[Engine]:
        """A started engine that the test may break."""
        engine = await self.make_engine()
        await engine.start()
        yield engine
        await engine.shutdown(grace_s=0.0)

    @pytest_asyncio.fixture(loop_scope="class", autouse=True)
    async def _left_idle(self, engine: Engine) -> AsyncIterator[None]:
        yield
        await self.until_idle(engine)

    def request(self, prompt: Sequence[int] | None = None, **changes: Any) -> EngineRequest:
        """A greedy request for `output_tokens` tokens of the first prompt, with the changes given."""
        base = EngineRequest(
            id=f"request-{next(_ids)}",
            prompt_token_ids=self.prompts[0] if prompt is None else prompt,
            max_output_tokens=self.output_tokens,
            sampling=GREEDY,
        )
        return dataclasses.replace(base, **changes)

    def sampled(self, seed: int = 7, **changes: Any) -> Sampling:
        return Sampling(**{"temperature": self.sampled_temperature, "seed": seed, **changes})

    async def run(self, engine: Engine, request: EngineRequest) -> EventRecorder:
        """Submit, and wait for the end."""
        recorder = EventRecorder()
        await self.until_room(engine, [request])
        engine.submit(request, recorder)
        await recorder.until_ended(self.bound_s)
        return recorder

    async def run_together(self, engine: Engine, requests: Sequence[EngineRequest]) -> list[EventRecorder]:
        """Submit each as soon as there is room for it, and wait for the end of all."""
        recorders = []
        for request in requests:
            await self.until_room(engine, [request])
            recorders.append(EventRecorder())
            engine.submit(request, recorders[-1])
        for recorder in recorders:
            await recorder.until_ended(self.bound_s)
        return recorders

    async def until_room(self, engine: Engine, requests: Sequence[EngineRequest]) -> None:
        await self.until(lambda: engine.room_for(requests))

    async def until_idle(self, engine: Engine) -> None:
        """Nothing runs, and no KV block is held."""

        def idle() -> bool:
            load = engine.load()
            return load.running == 0 and not load.kv_blocks_used and not load.kv_blocks_reserved

        await self.until(idle)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Look at a condition every millisecond; fails the test after `bound_s`."""
        async with asyncio.timeout(self.bound_s):
            while not condition():  # noqa: ASYNC110 - a load snapshot has no event to wait for
                await asyncio.sleep(0.001)

    def requires(self, engine: Engine, *names: str) -> None:
        """Skip unless each name is an honoured request field or a true capability of the engine."""
        capabilities = engine.capabilities
        for name in names:
            if name in self.not_shown:
                pytest.skip(f"not shown: {name}")
            if name not in capabilities.request_fields and not getattr(capabilities, name, None):
                pytest.skip(f"missing capability: {name}")
