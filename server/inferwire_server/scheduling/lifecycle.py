"""Whether this server takes work, as one state that admission, health and operators all read."""

from __future__ import annotations

import enum
import time
from collections.abc import Callable

from inferwire_server.domain.engine import EngineHealth, EngineState
from inferwire_server.domain.errors import Draining, EngineDown, Starting, Unavailable

RESTART_HINT_S = 2.0
"""An engine is usually back after about this long."""


class ServerState(enum.IntEnum):
    """As on the wire."""

    STARTING = 1
    SERVING = 2
    DRAINING = 3


class Lifecycle:
    """STARTING until warm, SERVING until drained. Listeners hear every change of state or readiness."""

    def __init__(self, engine_health: Callable[[], EngineHealth]) -> None:
        self.state = ServerState.STARTING
        self._engine_health = engine_health
        self._refusing_from = float("inf")
        self._fault = ""
        self._listeners: list[Callable[[], None]] = []

    def __repr__(self) -> str:
        return f"<Lifecycle {self.state.name}, ready={self.is_ready}, {self.reason()!r}>"

    def subscribe(self, changed: Callable[[], None]) -> None:
        """Call `changed` after each change."""
        self._listeners.append(changed)

    def warm(self) -> None:
        """A first generation has finished: serve."""
        if self.state is ServerState.STARTING:
            self.state = ServerState.SERVING
            self.notify()

    def drain(self, *, settle_s: float, now: float) -> None:
        """Not ready from now on, refusing from `settle_s` later on."""
        if self.state is not ServerState.DRAINING:
            self.state = ServerState.DRAINING
            self._refusing_from = now + settle_s
            self.notify()

    def fault(self, reason: str) -> None:
        """The canary's finding: a reason for not being ready; empty when all is well."""
        if reason != self._fault:
            self._fault = reason
            self.notify()

    def notify(self) -> None:
        """Tell the listeners; also called when the engine's health changed."""
        for changed in self._listeners:
            changed()

    @property
    def is_ready(self) -> bool:
        """Whether balancers should send work here."""
        return self.state is ServerState.SERVING and not self._fault and self._engine_state() is EngineState.READY

    def reason(self) -> str:
        """Why it is not ready, in words; empty when it is."""
        if self.state is ServerState.STARTING:
            return self._engine_health().reason or "the model is loading"
        if self.state is ServerState.DRAINING:
            return "draining"
        if self._engine_state() is not EngineState.READY:
            return self._engine_health().reason or "the engine is down"
        return self._fault

    def check_started(self) -> None:
        """Raise Starting while the engine's facts are not known yet."""
        if self.state is ServerState.STARTING:
            raise Starting("the server is starting: the model is not ready yet", retry_after_s=RESTART_HINT_S)

    def check(self, now: float | None = None) -> None:
        """Raise Starting, Draining or EngineDown when no new work is taken."""
        refusal = self.refusal(time.monotonic() if now is None else now)
        if refusal is not None:
            raise refusal

    def refusal(self, now: float) -> Unavailable | None:
        """Why new work is refused; None when it is taken."""
        if self.state is ServerState.STARTING:
            return Starting("the server is starting: the model is not ready yet", retry_after_s=RESTART_HINT_S)
        if self.state is ServerState.DRAINING and now >= self._refusing_from:
            return Draining("the server is draining", retry_after_s=0.0)
        if self._engine_state() in (EngineState.DEAD, EngineState.STARTING):
            return EngineDown("the engine is down and being restarted", retry_after_s=RESTART_HINT_S)
        return None

    def _engine_state(self) -> EngineState:
        return self._engine_health().state
