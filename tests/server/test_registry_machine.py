"""Any interleaving of duplicates, attempts, leavings and engine steps: one generation an id, whole answers, no leak."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from inferwire_server.app.inference_server import InferenceServer
from inferwire_server.app.served_model import scripted_model
from inferwire_server.domain.caller import Caller
from inferwire_server.domain.errors import CancelledByCaller, Fenced, KeyConflict, Overloaded, ServiceError
from inferwire_server.domain.generation import Completed, Delta
from inferwire_server.domain.request import GenerationDraft
from inferwire_server.engines.scripted import ManualClock, ScriptedEngine, ScriptedOptions
from inferwire_server.settings import Settings

OPTIONS = ScriptedOptions(step_base_s=0.01, max_running=2, kv_blocks=64)
STEP_S = 0.011
GAUGES = ("inferwire_running_generations", "inferwire_waiting_generations")


@dataclass(eq=False)
class Reader:
    """One call in the machine's hands."""

    key: tuple[str, str]
    content: int
    attempt: int
    task: asyncio.Task[None]
    number: int = 0
    """Which generation it reads."""
    token_ids: list[int] = field(default_factory=list)
    outcome: Exception | str | None = None


class RegistryMachine(RuleBasedStateMachine):
    """A server without its network, and an engine that steps when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.clock = ManualClock()
        self.engine = ScriptedEngine(OPTIONS, clock=self.clock)
        self.readers: list[Reader] = []
        self.run(self._start())

    async def _start(self) -> None:
        model = scripted_model(self.engine, OPTIONS.max_context_tokens)
        self.server = InferenceServer(Settings(port=0, metrics_enabled=False, max_waiting=4), model)
        await self.engine.start()
        self.server.lifecycle.warm()
        self.sessions = self.server.sessions

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        self.loop.run_until_complete(coroutine)

    async def _turn(self) -> None:
        """Let everything that is ready happen."""
        for _ in range(5):
            await asyncio.sleep(0)

    @rule(
        tenant=st.sampled_from("ab"),
        name=st.sampled_from(["one", "two"]),
        content=st.sampled_from([3, 6]),
        attempt=st.integers(0, 2),
        has_grace=st.booleans(),
    )
    def call(self, tenant: str, name: str, content: int, attempt: int, has_grace: bool) -> None:
        draft = GenerationDraft(
            model="scripted",
            prompt=(65, 66),
            max_output_tokens=content,
            request_id=name,
            attempt=attempt,
            detach_grace_s=300.0 if has_grace else None,
        )

        async def begin() -> None:
            reader = Reader((tenant, name), content, attempt, asyncio.current_task())  # type: ignore[arg-type]
            reader.task = asyncio.create_task(self._read(reader, draft))
            self.readers.append(reader)
            await self._turn()

        self.run(begin())

    async def _read(self, reader: Reader, draft: GenerationDraft) -> None:
        try:
            caller = Caller(tenant=reader.key[0])
            async with await self.sessions.open(draft, caller, arrived_at=time.monotonic()) as reading:
                reader.number = id(reading.session)
                for event in await reading.all():
                    if isinstance(event, Delta):
                        reader.token_ids += event.token_ids
                    elif isinstance(event, Completed):
                        reader.outcome = "whole"
        except ServiceError as error:
            reader.outcome = error

    @rule(steps=st.integers(1, 8))
    def step(self, steps: int) -> None:
        async def advance() -> None:
            for _ in range(steps):
                self.clock.advance(STEP_S)
                await self._turn()

        self.run(advance())

    @precondition(lambda self: any(not reader.task.done() for reader in self.readers))
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        reader = data.draw(st.sampled_from([reader for reader in self.readers if not reader.task.done()]))
        reader.task.cancel()
        self.run(self._turn())

    @rule()
    def forget(self) -> None:
        self.sessions.sweep(time.monotonic() + 1000)

    @invariant()
    def every_id_has_one_generation(self) -> None:
        live = [(session.caller.tenant, session.generation.request_id) for session in self.sessions.live()]
        assert len(live) == len(set(live))
        assert self.engine.load().running <= OPTIONS.max_running
        assert self.sessions.num_live >= len(live)

    @invariant()
    def readers_got_what_they_asked_for(self) -> None:
        for reader in self.readers:
            if reader.outcome == "whole":
                assert len(reader.token_ids) == reader.content
            elif reader.outcome is not None:
                assert self.is_justified(reader)

    def is_justified(self, reader: Reader) -> bool:
        """Whether some other call explains why this one was refused or ended."""
        others = [other for other in self.readers if other.key == reader.key]
        if isinstance(reader.outcome, Fenced):
            return any(other.attempt > reader.attempt for other in others)
        if isinstance(reader.outcome, KeyConflict):
            return any(other.content != reader.content for other in others)
        return isinstance(reader.outcome, Overloaded)

    @invariant()
    def readers_of_one_generation_read_the_same(self) -> None:
        for reader in self.readers:
            same = [
                other.token_ids
                for other in self.readers
                if other.number == reader.number and other.outcome == reader.outcome == "whole"
            ]
            assert all(token_ids == reader.token_ids for token_ids in same)

    def teardown(self) -> None:
        async def end() -> None:
            for reader in self.readers:
                reader.task.cancel()
            for _ in range(40):
                self.clock.advance(STEP_S)
                await self._turn()
            self.sessions.end_all(lambda: CancelledByCaller("the machine ends"))
            for _ in range(5):
                self.clock.advance(STEP_S)
                await self._turn()

        self.run(end())
        assert self.sessions.num_live == 0
        assert (self.engine.load().running, self.engine.load().kv_blocks_reserved) == (0, 0)
        gauges = [self.server.metrics.registry.get_sample_value(name, {"model": "scripted@1"}) for name in GAUGES]
        assert gauges == [0, 0]
        self.sessions.sweep(time.monotonic() + 1000)
        assert (self.sessions.num_replayable, self.sessions.replayable_bytes) == (0, 0)
        self.loop.close()


TestRegistry = RegistryMachine.TestCase
TestRegistry.settings = settings(max_examples=60, stateful_step_count=30)
