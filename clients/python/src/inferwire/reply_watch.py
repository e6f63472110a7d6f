"""Cancels a unary call whose server gives no sign of life while it owes the reply."""

from __future__ import annotations

import asyncio
from typing import Any

from inferwire.channels import Link


class ReplyWatch:
    """Asks the server for a sign of life each time that a call has waited so long for its reply."""

    def __init__(self, patience_s: float | None) -> None:
        """None never asks."""
        self.has_stalled = False
        """Whether the latest call was cancelled because nothing came."""
        self._patience_s = patience_s
        self._call: Any = None
        self._link: Link | None = None
        self._handle: asyncio.TimerHandle | None = None
        self._asking: asyncio.Task[None] | None = None

    def begin(self, call: Any, link: Link) -> None:
        """Watch an attempt's call. What stands for many servers is not asked: another one might answer."""
        self.has_stalled = False
        self._call, self._link = call, link
        if not link.endpoint.stands_for_many:
            self._wait()

    def stop(self) -> None:
        """The attempt has ended."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        if self._asking is not None:
            self._asking.cancel()
            self._asking = None

    def _wait(self) -> None:
        if self._patience_s is not None:
            self._handle = asyncio.get_running_loop().call_later(self._patience_s, self._due)

    def _due(self) -> None:
        self._asking = asyncio.create_task(self._ask(), name="reply watch")

    async def _ask(self) -> None:
        assert self._link is not None  # noqa: S101 set by begin
        assert self._patience_s is not None  # noqa: S101 nothing is due otherwise
        if await self._link.sign_of_life.within(self._patience_s):
            self._wait()
        else:
            self.has_stalled = True
            self._call.cancel()
