"""A sink that remembers, and lets a test wait for what it heard."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from inferwire_server.domain.engine import (
    Cancelled,
    EngineEvent,
    Failed,
    Finished,
    PrefillProgress,
    PromptTokens,
    Tokens,
)
from inferwire_server.domain.generation import TokenLogprobs

Terminal = Finished | Failed | Cancelled


class EventRecorder:
    """Records the events of one stream in order."""

    def __init__(self) -> None:
        self.events: list[EngineEvent] = []
        self._changed = asyncio.Event()

    def __call__(self, event: EngineEvent) -> None:
        self.events.append(event)
        self._changed.set()

    @property
    def token_ids(self) -> list[int]:
        return [token for event in self.events if isinstance(event, Tokens) for token in event.token_ids]

    @property
    def logprobs(self) -> list[TokenLogprobs]:
        return [entry for event in self.events if isinstance(event, Tokens) for entry in event.logprobs]

    @property
    def prompt_tokens(self) -> list[PromptTokens]:
        return [event for event in self.events if isinstance(event, PromptTokens)]

    @property
    def prefill_progress(self) -> list[int]:
        return [event.prompt_tokens_done for event in self.events if isinstance(event, PrefillProgress)]

    @property
    def terminals(self) -> list[Terminal]:
        return [event for event in self.events if isinstance(event, Terminal)]

    @property
    def terminal(self) -> Terminal:
        """The one terminal event; fails the test when there is not exactly one."""
        (only,) = self.terminals
        return only

    @property
    def finished(self) -> Finished:
        """The terminal, when it is Finished; fails the test otherwise."""
        terminal = self.terminal
        assert isinstance(terminal, Finished), terminal
        return terminal

    @property
    def failure(self) -> Exception:
        """The error of the terminal, when it is Failed; fails the test otherwise."""
        terminal = self.terminal
        assert isinstance(terminal, Failed), terminal
        return terminal.error

    async def until(self, condition: Callable[[EventRecorder], bool], bound_s: float) -> None:
        """Wait for the condition; it is looked at after each event. Fails the test after `bound_s`."""
        try:
            async with asyncio.timeout(bound_s):
                while not condition(self):
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise AssertionError(
                f"not within {bound_s} s; {len(self.events)} events, last {self.events[-1:]}"
            ) from None

    async def until_tokens(self, count: int, bound_s: float) -> None:
        """Wait for `count` tokens or the end."""
        await self.until(lambda heard: len(heard.token_ids) >= count or bool(heard.terminals), bound_s)

    async def until_ended(self, bound_s: float) -> Terminal:
        """Wait for the terminal and return it."""
        await self.until(lambda heard: bool(heard.terminals), bound_s)
        return self.terminal
