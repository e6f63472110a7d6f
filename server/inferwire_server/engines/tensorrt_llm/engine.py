"""The adapter: the engine port over TensorRT-LLM's LLM API. Loading, health, death and shutdown are here."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Sequence

import structlog

from inferwire_server.domain.engine import (
    Capabilities,
    EngineHealth,
    EngineLoad,
    EngineRequest,
    EngineSink,
    EngineState,
)
from inferwire_server.domain.errors import EngineDown, InvalidRequest, Starting
from inferwire_server.domain.generation import Continuation, Grammar
from inferwire_server.engines.tensorrt_llm.checkpoint import Checkpoint
from inferwire_server.engines.tensorrt_llm.dispatcher import Dispatcher
from inferwire_server.engines.tensorrt_llm.engine_loop import EngineLoop, post_to
from inferwire_server.engines.tensorrt_llm.grammars import KINDS, require_compilable
from inferwire_server.engines.tensorrt_llm.installation import require_installed
from inferwire_server.engines.tensorrt_llm.launcher import require_leader
from inferwire_server.engines.tensorrt_llm.loading import LoadedModel, load, unload
from inferwire_server.engines.tensorrt_llm.options import Options
from inferwire_server.engines.tensorrt_llm.stream import RunningStream
from inferwire_server.engines.tensorrt_llm.surface import Llm
from inferwire_server.engines.tensorrt_llm.vital_signs import why_dead
from inferwire_server.engines.tensorrt_llm.watchdog import Bounds, Observation, Watchdog

_LINGER_S = 2.0
"""After the teardown of a dead or hung engine, time for the process to end in its own way."""

_log = structlog.get_logger("inferwire.engine.tensorrt_llm")


class TensorRTEngine:
    """One model on TensorRT-LLM. `exit_process` ends the process when the engine is dead and blocks its end."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        options: Options | None = None,
        *,
        exit_process: Callable[[int], object] = os._exit,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._checkpoint = checkpoint
        self._options = options or Options()
        self._clock = clock
        self._engine_loop = EngineLoop(name="inferwire-tensorrt-llm", clock=clock)
        self._watchdog = Watchdog(
            observe=self._observe,
            on_death=self._post_death,
            bounds=Bounds(
                silence_s=self._options.silence_s,
                loop_stuck_s=self._options.loop_stuck_s,
                exit_s=self._options.exit_s,
            ),
            exit_process=exit_process,
        )
        self._subscribers: list[Callable[[], None]] = []
        self._serving: asyncio.AbstractEventLoop | None = None
        self._llm: Llm | None = None
        self._dispatcher: Dispatcher | None = None
        self._death = ""
        self._shutdown: asyncio.Future[None] | None = None
        self._is_closed = False

    def __repr__(self) -> str:
        return f"<TensorRTEngine {self.health().state.name}, {self._dispatcher!r}>"

    @property
    def capabilities(self) -> Capabilities:
        """Valid after `start()`."""
        if self._dispatcher is None:
            raise Starting("the model is not loaded yet")
        return self._dispatcher.capabilities

    async def start(self) -> None:
        """Import the package and load the model. Raises EngineDown with a reason that says what to do."""
        require_leader(os.environ)
        require_installed()
        self._serving = asyncio.get_running_loop()
        try:
            model = await load(self._engine_loop, self._checkpoint, self._options)
        except TimeoutError:
            self._watchdog.exit_within(self._options.exit_s)
            raise EngineDown(
                f"engine unavailable: the model was not loaded within {self._options.start_timeout_s:g} s; "
                "see TensorRT-LLM's own log, or raise start_timeout_s"
            ) from None
        except EngineDown:
            await asyncio.to_thread(self._engine_loop.stop, _LINGER_S)
            raise
        self._begin(model)

    def room_for(self, requests: Sequence[EngineRequest]) -> bool:
        """Whether `submit` of all of them would be taken now."""
        if self._dispatcher is None or self._death or self._shutdown:
            return False
        return self._dispatcher.room_for(requests)

    def submit(self, request: EngineRequest, sink: EngineSink) -> RunningStream:
        """Take a request. Raises InvalidRequest, Overloaded, Starting or EngineDown."""
        if self._death or self._shutdown:
            raise EngineDown("the engine is shutting down" if self._shutdown else "the engine has died")
        if self._dispatcher is None:
            raise Starting("the model is not loaded yet")
        return self._dispatcher.submit(request, sink)

    def continuation_of(self, request: EngineRequest) -> Continuation:
        """PREFILLED: given tokens are appended to the prompt."""
        return Continuation.PREFILLED if request.resumed_token_ids else Continuation.FRESH

    def subscribe(self, changed: Callable[[], None]) -> None:
        """Call `changed` on the serving loop whenever room may have grown or health changed."""
        self._subscribers.append(changed)

    def health(self) -> EngineHealth:
        """State, and the time of the last step or, when idle, of the loop's last beat."""
        if self._dispatcher is None:
            state = EngineState.DEAD if self._is_closed else EngineState.STARTING
            return EngineHealth(state=state, reason="shut down" if self._is_closed else "loading the model")
        last_step = self._dispatcher.runner.last_step
        if self._death or self._is_closed:
            reason = self._death or "shut down"
            return EngineHealth(
                state=EngineState.DEAD, last_progress=last_step, reason=reason, is_final=bool(self._death)
            )
        since = self._dispatcher.silent_since
        if since is None:
            signs = [sign for sign in (last_step, self._engine_loop.last_beat) if sign is not None]
            return EngineHealth(state=EngineState.READY, last_progress=max(signs, default=None))
        silence = self._clock() - since
        if silence > self._options.silence_s / 2:
            reason = f"no step for {silence:.0f} s"
            return EngineHealth(state=EngineState.DEGRADED, last_progress=last_step, reason=reason)
        return EngineHealth(state=EngineState.READY, last_progress=last_step)

    def load(self) -> EngineLoad:
        """What runs, and the engine's own statistics as far as known."""
        return self._dispatcher.load() if self._dispatcher else EngineLoad()

    async def check(self, grammar: Grammar) -> None:
        """Raise InvalidRequest for a grammar that cannot be compiled, or that the chosen backend does not read."""
        if grammar.kind not in KINDS[self._options.guided_decoding]:
            raise InvalidRequest(f"structured_output.{grammar.kind.value}", "not supported by this model’s engine")
        await asyncio.to_thread(require_compilable, grammar)

    async def shutdown(self, grace_s: float) -> None:
        """End live streams with Failed(EngineDown) after at most `grace_s` and release everything. Idempotent."""
        if self._shutdown is None:
            self._shutdown = asyncio.ensure_future(self._close(grace_s))
        await asyncio.shield(self._shutdown)

    def _begin(self, model: LoadedModel) -> None:
        self._llm = model.llm
        self._dispatcher = Dispatcher(
            model,
            self._checkpoint,
            self._options,
            engine_loop=self._engine_loop,
            on_changed=self._notify,
            on_fatal=self._on_fatal,
            clock=self._clock,
        )
        self._watchdog.start()
        self._notify()

    def _notify(self) -> None:
        for changed in self._subscribers:
            changed()

    def _observe(self) -> Observation:
        """On the watchdog's thread, so it only reads."""
        dispatcher = self._dispatcher
        return Observation(
            now=self._clock(),
            why_dead="" if self._shutdown else why_dead(self._llm),
            last_beat=self._engine_loop.last_beat,
            running_since=dispatcher.silent_since if dispatcher else None,
            unanswered=dispatcher.runner.unanswered if dispatcher else 0,
            unanswered_since=dispatcher.runner.unanswered_since if dispatcher else None,
        )

    def _on_fatal(self, reason: str) -> None:
        """On the engine's loop. While it is being unloaded, its refusals are no death."""
        if not self._shutdown:
            self._watchdog.declare_dead(reason)

    def _post_death(self, reason: str) -> None:
        if self._serving is not None:
            post_to(self._serving, self._die, reason)

    def _die(self, reason: str) -> None:
        self._death = f"the engine is dead: {reason}"
        if self._dispatcher is not None:
            self._dispatcher.fail_all("the engine has died")
        self._notify()

    async def _close(self, grace_s: float) -> None:
        is_clean = await self._unload(grace_s)
        is_clean &= await asyncio.to_thread(self._engine_loop.stop, _LINGER_S)
        self._watchdog.stop()
        self._is_closed = True
        if not is_clean:
            _log.critical("engine not unloaded", exit_within_s=_LINGER_S)
            self._watchdog.exit_within(_LINGER_S)

    async def _unload(self, grace_s: float) -> bool:
        if self._dispatcher is None or self._llm is None:
            return True
        if not self._death:
            await self._dispatcher.drain(grace_s)
        self._dispatcher.fail_all("the engine is shutting down")
        # A dead engine's own teardown waits for workers that are gone: it is left alone and the process ends instead.
        return not self._death and await unload(self._llm, self._options.teardown_s)
