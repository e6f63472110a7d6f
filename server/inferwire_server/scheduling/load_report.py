"""How busy the server is, with rates over the last seconds."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from inferwire_server.domain.engine import Engine
from inferwire_server.scheduling.fair_queue import FairQueue
from inferwire_server.scheduling.session import Session

_MAX_TENANTS = 100
_MOMENT = 0.001
"""Share of the window."""


class Rate:
    """Units a second, by exponential decay with a time constant of `window_s` seconds. O(1), no timers."""

    __slots__ = ("_at", "_decays_at", "_mass", "_window_s")

    def __init__(self, window_s: float, now: float) -> None:
        self._window_s = window_s
        self._mass = 0.0
        self._at = now
        self._decays_at = now

    def add(self, amount: float, now: float) -> None:
        """Count `amount` units at `now`. Moments that are next to each other are taken for one: tokens come often."""
        if now >= self._decays_at:
            self._mass = self._decayed(now)
            self._at = now
            self._decays_at = now + _MOMENT * self._window_s
        self._mass += amount

    def per_second(self, now: float) -> float:
        """The rate at `now`."""
        return self._decayed(now) / self._window_s

    def _decayed(self, now: float) -> float:
        return float(self._mass * math.exp(-(now - self._at) / self._window_s))


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantLoad:
    """One tenant's part."""

    tenant: str
    running: int
    waiting: int
    tokens_per_second: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadReport:
    """None is unknown."""

    running: int
    waiting: int
    kv_utilization: float | None
    batch_size: int | None
    output_tokens_per_second: float
    prompt_tokens_per_second: float
    tenants: list[TenantLoad] = field(default_factory=list)


class LoadReporter:
    """Told of tokens as they are served."""

    def __init__(
        self,
        engine: Engine,
        queue: FairQueue[Session],
        *,
        window_s: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine = engine
        self._queue = queue
        self._window_s = window_s
        self._clock = clock
        self._prompt = Rate(window_s, clock())
        self._output = Rate(window_s, clock())
        self._tenants: dict[str, Rate] = {}

    def prompt_started(self, session: Session) -> None:
        """The engine has taken a prompt."""
        tokens = len(session.generation.prompt_token_ids)
        now = self._clock()
        self._prompt.add(tokens, now)
        self._tenant(session.caller.tenant, now).add(tokens, now)

    def output_served(self, session: Session, count: int) -> None:
        """The engine has produced tokens."""
        now = self._clock()
        self._output.add(count, now)
        self._tenant(session.caller.tenant, now).add(count, now)

    def utilization(self) -> float:
        """Sequences running and waiting over those that fit one batch; above 1 when requests wait. Never quite 0."""
        most = self._engine.capabilities.max_running
        return max(0.01, (self._queue.running_slots + self._queue.waiting) / most)

    def report(self) -> LoadReport:
        """A snapshot."""
        now = self._clock()
        load = self._engine.load()
        views = {view.tenant: view for view in self._queue.tenants()}
        for tenant, rate in list(self._tenants.items()):
            if tenant not in views and rate.per_second(now) < 0.01:
                del self._tenants[tenant]
        tenants = [
            TenantLoad(
                tenant=tenant,
                running=views[tenant].running if tenant in views else 0,
                waiting=views[tenant].waiting if tenant in views else 0,
                tokens_per_second=self._tenants[tenant].per_second(now) if tenant in self._tenants else 0.0,
            )
            for tenant in views.keys() | self._tenants.keys()
        ]
        tenants.sort(key=lambda each: (-each.tokens_per_second, -each.running, each.tenant))
        return LoadReport(
            running=self._queue.running,
            waiting=self._queue.waiting,
            kv_utilization=load.kv_utilization,
            batch_size=load.batch_size,
            output_tokens_per_second=self._output.per_second(now),
            prompt_tokens_per_second=self._prompt.per_second(now),
            tenants=tenants[:_MAX_TENANTS],
        )

    def _tenant(self, tenant: str, now: float) -> Rate:
        rate = self._tenants.get(tenant)
        if rate is None:
            rate = self._tenants[tenant] = Rate(self._window_s, now)
        return rate
