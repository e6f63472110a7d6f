"""Whether a grammar can be compiled and followed, and soon enough, found out where nothing else can be harmed.

The pipeline compiles and follows grammars inside its step: a bad one breaks it for good, a costly one holds up every
stream. So a child process with a one-layer model and the same tokeniser tries each grammar first. The verdict is by
processor time, which does not depend on what else the machine does, and is kept.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import tempfile
import time
from collections import OrderedDict
from pathlib import Path

from inferwire_server.domain.errors import EngineDown, InvalidRequest, Overloaded
from inferwire_server.domain.generation import Grammar
from inferwire_server.engines.openvino.child_process import ChildProcess
from inferwire_server.engines.openvino.frames import Fault, Frame, Probe, ProbeLoad, ProbeReady, Verdict
from inferwire_server.engines.openvino.generation_settings import structured_output
from inferwire_server.engines.openvino.grammar_spelling import misreading

COMPILE_LIMIT_S = 0.15
"""Most processor time for compiling, all threads together: the engine spends it again, inside a step."""
FOLLOW_LIMIT_S = 0.3
"""The same for a walk of 48 tokens. An ambiguous grammar takes longer with each token."""
_CPU_KILL_S = 0.7
"""A probe that has used so much is killed: the verdict cannot change any more."""
_WALL_KILL_S = 1.0
"""The same where another process's time cannot be read, and no verdict."""
_STARVED_KILL_S = 10.0
"""A probe that has not got its processor time by then is killed, and no verdict."""
_LOOK_S = 0.02
_START_S = 60.0
_PROBES_PER_CHILD = 1000
"""The compiler keeps what it has compiled, some 0.1 MB each; then a new process begins."""
_KEPT_VERDICTS = 1024
_TOO_COSTLY = "is too costly to compile; make it smaller"
_TOO_SLOW = "is too costly to follow; make it less ambiguous: no repeats of what repeats, no parts that read alike"
_MODULE = "inferwire_server.engines.openvino.probe_worker"
_log = logging.getLogger(__name__)


class GrammarProbe:
    """Compiles grammars one at a time; its process starts with the first and is replaced when it had to be killed."""

    def __init__(self, model_path: Path) -> None:
        self._model_path = model_path
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._child: ChildProcess | None = None
        self._probes_left = 0
        self._frames: asyncio.Queue[Verdict | ProbeReady | None] = asyncio.Queue()
        """From the present child; None comes when it is lost."""
        self._tasks: dict[bytes, asyncio.Task[str]] = {}
        self._turn = asyncio.Lock()
        self._reaping: set[asyncio.Task[str]] = set()
        self._complaints: OrderedDict[bytes, str] = OrderedDict()
        """Verdicts by the grammar's digest; empty for a good one."""
        self._is_closed = False

    @property
    def pid(self) -> int | None:
        """Process id of the compiler; None before the first grammar and after a loss."""
        return None if self._child is None else self._child.pid

    async def check(self, grammar: Grammar) -> None:
        """Raise InvalidRequest when the grammar is bad or too costly, Overloaded or EngineDown when that stays open."""
        digest = _digest(grammar)
        complaint = self._complaints.get(digest)
        if complaint is None:
            # A caller who leaves does not stop the compiler, and others may wait for the same verdict.
            complaint = await asyncio.shield(self._judging(digest, grammar))
        else:
            self._complaints.move_to_end(digest)
        if complaint:
            raise InvalidRequest(_field(grammar), complaint)

    def condemn(self, grammar: Grammar) -> InvalidRequest:
        """Refuse from now on what the engine itself found too slow to follow; what to tell its caller."""
        self._keep(_digest(grammar), _TOO_SLOW)
        return InvalidRequest(_field(grammar), _TOO_SLOW)

    async def close(self) -> None:
        """End the process and remove its files. Idempotent."""
        self._is_closed = True
        self._frames.put_nowait(None)
        await self._retire()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        await asyncio.gather(*self._reaping)
        if self._folder is not None:
            self._folder.cleanup()

    def _judging(self, digest: bytes, grammar: Grammar) -> asyncio.Task[str]:
        if digest not in self._tasks:
            task = asyncio.get_running_loop().create_task(self._judge(digest, grammar))
            self._tasks[digest] = task
            task.add_done_callback(lambda done: self._judged(digest, done))
        return self._tasks[digest]

    def _judged(self, digest: bytes, done: asyncio.Task[str]) -> None:
        del self._tasks[digest]
        if not done.cancelled():
            done.exception()  # seen, should every caller have left

    async def _judge(self, digest: bytes, grammar: Grammar) -> str:
        complaint = await asyncio.to_thread(misreading, grammar)
        if not complaint:
            async with self._turn:
                complaint = await self._complaint(grammar)
        self._keep(digest, complaint)
        return complaint

    def _keep(self, digest: bytes, complaint: str) -> None:
        self._complaints[digest] = complaint
        if len(self._complaints) > _KEPT_VERDICTS:
            self._complaints.popitem(last=False)

    async def _complaint(self, grammar: Grammar) -> str:
        child = await self._ready_child()
        before_s = child.cpu_seconds()
        child.send(Probe(*structured_output(grammar)))
        begun = time.monotonic()
        while True:
            with contextlib.suppress(TimeoutError):
                verdict = await asyncio.wait_for(self._frames.get(), _LOOK_S)
                return self._complaint_of(verdict, grammar)
            now_s, waited_s = child.cpu_seconds(), time.monotonic() - begun
            used_s = None if now_s is None or before_s is None else now_s - before_s
            if used_s is not None and used_s > _CPU_KILL_S:
                await self._replace(child, "killed over a costly grammar")
                return _TOO_COSTLY
            if waited_s > (_WALL_KILL_S if used_s is None else _STARVED_KILL_S):
                await self._replace(child, "killed over a grammar, without a verdict")
                raise Overloaded("the grammar could not be checked in time; try again", retry_after_s=1.0)

    def _complaint_of(self, verdict: Verdict | ProbeReady | None, grammar: Grammar) -> str:
        if not isinstance(verdict, Verdict):
            if self._is_closed:
                raise _not_running()
            raise InvalidRequest(_field(grammar), "broke the compiler")
        if not verdict.is_compiled:
            return "cannot be compiled by this model’s engine"
        if verdict.compile_s > COMPILE_LIMIT_S:
            return _TOO_COSTLY
        return _TOO_SLOW if verdict.follow_s > FOLLOW_LIMIT_S else ""

    async def _ready_child(self) -> ChildProcess:
        if self._is_closed:
            raise _not_running()
        if self._probes_left == 0:
            await self._retire()
        self._probes_left -= 1
        child = self._child or await self._start()
        answer: Verdict | ProbeReady | None = None
        with contextlib.suppress(TimeoutError):
            answer = await asyncio.wait_for(self._frames.get(), _START_S)
        if not isinstance(answer, ProbeReady):
            child.lose("not ready in time", is_stuck=True)
            raise EngineDown("grammars cannot be checked now; try another server", retry_after_s=_START_S)
        return child

    async def _start(self) -> ChildProcess:
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="inferwire-grammar-probe-")
        self._frames = asyncio.Queue()
        self._probes_left = _PROBES_PER_CHILD - 1
        self._child = child = ChildProcess(_MODULE, self._frame_came, self._lost, is_silent=True)
        try:
            await child.spawn(ProbeLoad(str(self._model_path), str(Path(self._folder.name) / "probe.gguf")))
        except OSError as error:
            child.lose(f"could not be started: {error}")
        return child

    async def _replace(self, child: ChildProcess, reason: str) -> None:
        # The next caller waits less when the next process does not begin with him.
        child.lose(reason, is_stuck=True)
        if not self._is_closed:
            await self._start()

    async def _retire(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            await child.quit()

    def _frame_came(self, frame: Frame) -> None:
        if isinstance(frame, Verdict | ProbeReady):
            self._frames.put_nowait(frame)
        elif isinstance(frame, Fault) and self._child is not None:
            self._child.lose(f"{frame.stage} failed: {frame.text}")

    def _lost(self, child: ChildProcess, reason: str) -> None:
        _log.warning("grammar probe %s lost: %s", child.pid, reason)
        self._child = None
        self._frames.put_nowait(None)
        reaping = asyncio.get_running_loop().create_task(child.reap())
        self._reaping.add(reaping)
        reaping.add_done_callback(self._reaping.discard)


def _digest(grammar: Grammar) -> bytes:
    return hashlib.sha256(repr((grammar.kind, grammar.source, grammar.texts)).encode()).digest()


def _not_running() -> EngineDown:
    return EngineDown("the engine is not running; try another server")


def _field(grammar: Grammar) -> str:
    return f"structured_output.{grammar.kind.value}"
