"""A one-token generation now and then: an idle engine that has stopped working is found before a caller finds it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from inferwire_server.domain.engine import (
    Cancelled,
    Engine,
    EngineEvent,
    EngineRequest,
    EngineState,
    Failed,
    Finished,
)
from inferwire_server.domain.errors import EngineDown, ServiceError
from inferwire_server.domain.generation import Sampling
from inferwire_server.observability.faults import record_fault
from inferwire_server.scheduling.lifecycle import Lifecycle

CACHE_NAMESPACE = "canary"
"""Tenants' namespaces begin with a length, so none can be this one."""


class Canary:
    """Submits straight to the engine: no session, queue, gauge or counter sees it."""

    def __init__(
        self,
        engine: Engine,
        lifecycle: Lifecycle,
        *,
        prompt_token_ids: Sequence[int],
        interval_s: float,
        timeout_s: float,
        observe: Callable[[bool, float], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`observe` hears of each probe: whether it finished, and its seconds."""
        self._engine = engine
        self._lifecycle = lifecycle
        self._prompt_token_ids = tuple(prompt_token_ids)
        self._interval_s = interval_s
        self._timeout_s = timeout_s
        self._observe = observe
        self._clock = clock
        self._count = 0

    async def probe(self, timeout_s: float | None = None) -> None:
        """Run one generation to its end. Raises EngineDown when it does not finish, Overloaded without room."""
        ended: asyncio.Future[Finished | Cancelled | Failed] = asyncio.get_running_loop().create_future()

        def sink(event: EngineEvent) -> None:
            if isinstance(event, (Finished, Cancelled, Failed)) and not ended.done():
                ended.set_result(event)

        self._count += 1
        began = self._clock()
        request = EngineRequest(
            id=f"canary/{self._count}",
            prompt_token_ids=self._prompt_token_ids,
            max_output_tokens=1,
            sampling=Sampling(temperature=0.0),
            ignore_end_of_sequence=True,
            cache_namespace=CACHE_NAMESPACE,
            bypass_cache="cache.bypass" in self._engine.capabilities.request_fields,
        )
        stream = self._engine.submit(request, sink)
        try:
            async with asyncio.timeout(self._timeout_s if timeout_s is None else timeout_s):
                outcome = await ended
        except TimeoutError:
            stream.cancel()
            self._observe(False, self._clock() - began)
            raise EngineDown("the engine did not finish a one-token generation in time") from None
        is_whole = isinstance(outcome, Finished)
        self._observe(is_whole, self._clock() - began)
        if not is_whole:
            raise EngineDown("the engine failed a one-token generation")

    async def check(self) -> None:
        """Probe when the engine is idle or silent; otherwise its own progress is proof enough."""
        health = self._engine.health()
        if health.state in (EngineState.DEAD, EngineState.STARTING):
            return
        is_progressing = health.last_progress is not None and self._clock() - health.last_progress < self._interval_s
        if self._engine.load().running and is_progressing:
            self._lifecycle.fault("")
            return
        try:
            await self.probe()
        except EngineDown as error:
            self._lifecycle.fault(error.message)
        except ServiceError:
            if not is_progressing:
                self._lifecycle.fault("the engine is full and makes no progress")
        except Exception as fault:  # noqa: BLE001 the next probe must come all the same
            self._lifecycle.fault(f"the engine refused a one-token generation: {record_fault(fault).message}")
        else:
            self._lifecycle.fault("")

    async def run(self) -> None:
        """Check for ever."""
        while True:
            await asyncio.sleep(self._interval_s)
            await self.check()
