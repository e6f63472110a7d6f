"""Cancels a call that its reader waits for in vain."""

from __future__ import annotations

import asyncio
from typing import Any

from inferwire.channels import Fleet
from inferwire.policy.stall import StallTimer


class StallWatch:
    """One timer an attempt, moved only when it fires. A reader that is busy elsewhere is no stall."""

    def __init__(self, fleet: Fleet) -> None:
        self.has_stalled = False
        self._fleet = fleet
        self.clock = fleet.clock
        self._call: Any = None
        self._timer = StallTimer(fleet.config.stall, 0.0)
        self._handle: asyncio.TimerHandle | None = None
        self.waits_since: float | None = None
        """When the reader began to wait for the next event; None while it does not."""
        self.token_waits_since: float | None = None
        """The same for the next token."""
        self._has_started = self._has_token = False
        self._prompt_tokens_done = 0

    def begin(self, call: Any) -> None:
        """Watch an attempt's call."""
        self.has_stalled = self._has_started = self._has_token = False
        self._prompt_tokens_done = 0
        self.token_waits_since = None
        self._call = call
        self._timer = StallTimer(self._fleet.config.stall, self.clock())
        self._arm()

    def started(self) -> None:
        """An engine has begun: from here on it must also get on with the prompt."""
        self._has_started = True
        self._timer.started(self.clock())
        self.stop()
        self._arm()

    def progressed(self, prompt_tokens_done: int) -> None:
        """It tells how much of the prompt the engine has computed."""
        if self._has_started and prompt_tokens_done > self._prompt_tokens_done:
            self._prompt_tokens_done = prompt_tokens_done
            self._timer.started(self.clock())

    def token(self) -> None:
        """It was the attempt's first token: from here on the shorter silence counts."""
        self._has_token = True
        self._timer.heard(self.clock(), token=True)
        self.stop()
        self._arm()

    def stop(self) -> None:
        """The attempt has ended."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _arm(self) -> None:
        at = self._timer.expires_at
        if at is not None:
            delay_s = max(0.0, at - self.clock())
            self._handle = asyncio.get_running_loop().call_later(delay_s, self._due)

    def _due(self) -> None:
        now = self.clock()
        # Each event ended a silence, and so did a reader that had something else to do.
        if self._has_token:
            self._timer.heard(now if self.token_waits_since is None else self.token_waits_since, token=True)
        elif self._has_started and self.waits_since is None:
            self._timer.started(now)
        self._timer.heard(now if self.waits_since is None else self.waits_since)
        if self._timer.is_stalled(now):
            self.has_stalled = True
            self._call.cancel()
        else:
            self._arm()
