"""A reading that is ended from outside: gone at once for the generation, and out of its call as soon as gRPC allows."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from inferwire_server.domain.caller import ANONYMOUS
from inferwire_server.domain.errors import Fenced
from inferwire_server.domain.request import GenerationDraft
from inferwire_server.engines.scripted import Plan, PlanBook, ScriptedOptions
from inferwire_server.rpc.inference import deliver

from tests.polling import until
from tests.serving import MODEL, Serving, refusal, request, serving

SILENT = PlanBook((("silent", Plan(first_token_delay_s=60.0)),))


class Wire:
    """Where messages go: each send waits until it is let through."""

    def __init__(self) -> None:
        self.sending = 0
        self.gates = asyncio.Semaphore(0)

    async def send(self, event: Any) -> None:
        self.sending += 1
        await self.gates.acquire()


class Delivery:
    """A call that delivers one generation to a wire."""

    def __init__(self, server: Serving, prompt: str = "words") -> None:
        self.server = server
        self.wire = Wire()
        self.draft = GenerationDraft(model=MODEL, prompt=prompt, max_output_tokens=1000)
        self.reading: Any = None
        self.task = asyncio.create_task(self.run())

    async def run(self) -> None:
        opened = await self.server.server.sessions.open(self.draft, ANONYMOUS, arrived_at=time.monotonic())
        async with opened as self.reading:
            await deliver(self.reading, self.wire.send, progress_interval_s=None)

    async def until_sending(self, number: int) -> None:
        await until(lambda: self.wire.sending == number)

    def let_through(self, messages: int) -> None:
        for _ in range(messages):
            self.wire.gates.release()


async def test_the_first_message_is_never_given_up_half_way() -> None:
    async with serving() as server:
        call = Delivery(server)
        await call.until_sending(1)
        call.reading.interrupt(Fenced("a later attempt"))
        assert server.outcomes() == {"fenced": 1}
        assert await server.is_alive()
        assert not call.task.done()
        call.let_through(1)
        with pytest.raises(Fenced):
            await call.task
        assert call.wire.sending == 1


async def test_a_later_message_is_given_up_at_once() -> None:
    async with serving() as server:
        call = Delivery(server)
        call.let_through(1)
        await call.until_sending(2)
        call.reading.interrupt(Fenced("a later attempt"))
        with pytest.raises(Fenced):
            await call.task


async def test_a_wait_for_news_is_given_up_at_once() -> None:
    async with serving(plans=SILENT) as server:
        call = Delivery(server, "silent")
        call.let_through(1)
        await call.until_sending(1)
        await until(lambda: server.engine.load().running == 1)
        call.reading.interrupt(Fenced("a later attempt"))
        with pytest.raises(Fenced):
            await call.task
        await until(lambda: server.is_quiet)


async def test_a_caller_that_leaves_at_the_same_time_is_one_that_left() -> None:
    async with serving() as server:
        call = Delivery(server)
        call.let_through(1)
        await call.until_sending(2)
        call.reading.interrupt(Fenced("a later attempt"))
        call.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call.task


async def test_a_second_interruption_changes_nothing() -> None:
    async with serving() as server:
        call = Delivery(server)
        call.let_through(1)
        await call.until_sending(2)
        for message in ("first", "second"):
            call.reading.interrupt(Fenced(message))
        with pytest.raises(Fenced, match="first"):
            await call.task


@pytest.mark.parametrize("fields", [{"max_output_tokens": 100}, {"output": {"count": 4}}])
async def test_a_generation_that_was_refused_has_no_reader_left(fields: dict[str, Any]) -> None:
    async with serving(ScriptedOptions(kv_blocks=4, max_context_tokens=512)) as server:
        await refusal(server.inference.Generate(request(**fields)))
        async with asyncio.timeout(20):
            await server.server.sessions.until_read()
            await server.server.sessions.until_idle()
