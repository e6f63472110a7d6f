"""Which generations exist here, and who may read them: open, attach, replay, fence.

The registry is per process. A request id repeated on another server runs again there; what makes that harmless is
`resume` with the echoed seed, not the id.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from inferwire_server.domain.caller import Caller
from inferwire_server.domain.errors import (
    CancelledByCaller,
    Fenced,
    GenerationNotFound,
    KeyConflict,
    ReaderStalled,
    ServiceError,
)
from inferwire_server.domain.generation import Completed, Continuation, Generation, Progress
from inferwire_server.domain.request import GenerationDraft
from inferwire_server.observability.faults import record_fault
from inferwire_server.scheduling.admission import Admission
from inferwire_server.scheduling.departure import departure
from inferwire_server.scheduling.event_log import LogReader
from inferwire_server.scheduling.generation_names import content_digest
from inferwire_server.scheduling.intake import Intake
from inferwire_server.scheduling.observer import GenerationObserver
from inferwire_server.scheduling.reading import Reading
from inferwire_server.scheduling.session import OutputTextFactory, Session

Key = tuple[str, str]
"""Tenant and request id."""


@dataclass(slots=True)
class _Entry:
    session: Session
    is_kept: bool
    """Whether a reader may come back for it once it is complete."""
    attempt: int
    number: int = 0
    """Order of arrival."""
    readings: list[Reading] = field(default_factory=list)
    detach_timer: asyncio.TimerHandle | None = None
    finished_at: float = 0.0
    size_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionBounds:
    """Times are seconds."""

    stall_time_s: float = 30.0
    replay_time_s: float = 120.0
    replay_bytes: int = 64 * 1024 * 1024
    replay_count: int = 10_000


class Sessions:
    """Runs on the serving loop."""

    def __init__(
        self,
        intake: Intake,
        admission: Admission,
        observer: GenerationObserver,
        make_text: OutputTextFactory,
        bounds: SessionBounds,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._intake = intake
        self._admission = admission
        self._observer = observer
        self._make_text = make_text
        self._bounds = bounds
        self._clock = clock
        self._live: dict[Key, _Entry] = {}
        self._opening: dict[Key, int] = {}
        self._finished: OrderedDict[Key, _Entry] = OrderedDict()
        self._finished_bytes = 0
        self._unreleased: set[Session] = set()
        self._arrivals = 0
        self._all_released = asyncio.Event()
        self._all_released.set()
        self._readings: set[Reading] = set()
        self._all_left = asyncio.Event()

    def __repr__(self) -> str:
        return f"<Sessions {len(self._live)} live, {len(self._finished)} replayable, {self._finished_bytes} bytes>"

    @property
    def num_live(self) -> int:
        """Generations waiting or running, those the engine has yet to let go included."""
        return len(self._unreleased)

    @property
    def num_replayable(self) -> int:
        """Finished generations that can be read again."""
        return len(self._finished)

    @property
    def replayable_bytes(self) -> int:
        """About what they keep in memory."""
        return self._finished_bytes

    def live(self) -> Iterator[Session]:
        """Oldest first."""
        return (entry.session for entry in self._live.values())

    def numbered(self) -> Iterator[tuple[int, Session]]:
        """Live sessions with their number of arrival, oldest first."""
        return ((entry.number, entry.session) for entry in self._live.values())

    async def until_idle(self) -> None:
        """Return when nothing waits or runs."""
        while self._unreleased:
            self._all_released.clear()
            await self._all_released.wait()

    async def until_read(self) -> None:
        """Return when no reader is left."""
        while self._readings:
            self._all_left.clear()
            await self._all_left.wait()

    async def open(self, draft: GenerationDraft, caller: Caller, *, arrived_at: float) -> Reading:
        """Start a generation, or join the one of the same request id. Raises what admission and validation raise."""
        key = (caller.tenant, draft.request_id) if draft.request_id else None
        try:
            generation = await self._resolve(draft, caller, key)
            joined = None if key is None else self._join(key, draft, generation)
        except ServiceError as error:
            self._observer.refused(caller, error)
            raise
        except asyncio.CancelledError:
            self._observer.refused(caller, departure(now=self._clock(), arrived_at=arrived_at, deadline=draft.deadline))
            raise
        return joined or self._start(draft, generation, caller, arrived_at)

    def refuse(self, caller: Caller, error: ServiceError) -> None:
        """Count a request that could not even be read as a draft."""
        self._observer.refused(caller, error)

    def cancel(self, tenant: str, request_id: str, error: ServiceError) -> None:
        """End one live generation. Raises GenerationNotFound."""
        entry = self._live.get((tenant, request_id))
        if entry is None:
            raise GenerationNotFound("no such generation waits or runs here", field="request_id")
        entry.session.end(error)

    def end_all(self, make_error: Callable[[], ServiceError]) -> None:
        """End every live generation."""
        for session in list(self.live()):
            session.end(make_error())

    def sweep(self, now: float | None = None) -> None:
        """End readers that take nothing while something waits, and forget what is too old to be replayed."""
        now = self._clock() if now is None else now
        for reading in list(self._readings):
            if reading.is_stalled(now, self._bounds.stall_time_s):
                reading.interrupt(ReaderStalled("nothing was read for too long while output waited"))
        while self._finished and self._is_forgettable(next(iter(self._finished.values())), now):
            self._forget_oldest()

    async def _resolve(self, draft: GenerationDraft, caller: Caller, key: Key | None) -> Generation:
        if key is None or not self._is_known(key):
            self._admission.check_open(caller, draft.priority, draft.deadline)
        if key is not None:
            self._opening[key] = self._opening.get(key, 0) + 1
        try:
            with self._admission.place():
                return await self._intake.resolve(draft, caller)
        finally:
            if key is not None:
                self._opening[key] -= 1
                if not self._opening[key]:
                    del self._opening[key]

    def _is_known(self, key: Key) -> bool:
        return key in self._live or key in self._finished or key in self._opening

    def _join(self, key: Key, draft: GenerationDraft, generation: Generation) -> Reading | None:
        entry = self._live.get(key) or self._finished.get(key)
        if entry is None:
            return None
        there = entry.session.generation
        seed_differs = draft.sampling.seed is not None and draft.sampling.seed != there.sampling.seed
        if seed_differs or content_digest(there) != content_digest(generation):
            raise KeyConflict("the request id is in use with other content", field="request_id")
        if draft.attempt < entry.attempt:
            raise Fenced(f"attempt {entry.attempt} of this request has taken over", field="attempt")
        older = list(entry.readings) if draft.attempt > entry.attempt else []
        entry.attempt = draft.attempt
        try:
            return self._attach(key, entry, generation)
        finally:
            for reading in older:
                reading.interrupt(Fenced("a later attempt of this request has taken over", field="attempt"))

    def _attach(self, key: Key, entry: _Entry, generation: Generation) -> Reading | None:
        reader = _reader_for(entry.session, generation)
        if reader is None:
            self._drop(key, entry, CancelledByCaller("a later call of this request started over"))
            return None
        entry.session.extend(generation.deadline)
        is_finished = key in self._finished
        return self._read(entry, reader, Continuation.REPLAYED if is_finished else Continuation.ATTACHED)

    def _start(self, draft: GenerationDraft, generation: Generation, caller: Caller, arrived_at: float) -> Reading:
        session = Session(
            generation,
            caller,
            self._intake.facts,
            make_text=self._make_text,
            observer=self._observer,
            arrived_at=arrived_at,
            names_seed=draft.sampling.seed is not None,
            clock=self._clock,
        )
        key = (caller.tenant, generation.request_id)
        is_kept = bool(draft.request_id) or generation.scheduling.detach_grace_s > 0
        entry = _Entry(session, is_kept, generation.attempt)
        self._live[key] = entry
        self._unreleased.add(session)
        self._arrivals += 1
        entry.number = self._arrivals
        session.on_ended = lambda _: self._ended(key, entry)
        session.on_released = self._released
        reading = self._read(entry, session.log.reader(), Continuation.FRESH)
        try:
            self._admission.submit(session)
        except Exception as fault:  # noqa: BLE001 whatever it was, nothing of the session may stay behind
            error = fault if isinstance(fault, ServiceError) else record_fault(fault)
            reading.interrupt(error)
            session.end(error)
            raise error from None
        if not generation.scheduling.detach_grace_s:
            session.end_at_deadline()
        return reading

    def _read(self, entry: _Entry, reader: LogReader, continuation: Continuation) -> Reading:
        if entry.detach_timer is not None:
            entry.detach_timer.cancel()
            entry.detach_timer = None
        reading = Reading(
            entry.session,
            reader,
            continuation=continuation,
            left=lambda reading: self._left(entry, reading),
            progress=self._progress,
            clock=self._clock,
        )
        entry.readings.append(reading)
        self._readings.add(reading)
        return reading

    def _left(self, entry: _Entry, reading: Reading) -> None:
        self._readings.discard(reading)
        if not self._readings:
            self._all_left.set()
        entry.readings.remove(reading)
        session = entry.session
        if entry.readings or session.log.outcome is not None:
            return
        reason = reading.interruption or departure(
            now=self._clock(), arrived_at=session.arrived_at, deadline=session.deadline
        )
        grace_s = session.generation.scheduling.detach_grace_s
        if grace_s > 0:
            entry.detach_timer = asyncio.get_running_loop().call_later(grace_s, session.end, reason)
        else:
            session.end(reason)

    def _progress(self, session: Session) -> Progress:
        return self._admission.progress(session)

    def _ended(self, key: Key, entry: _Entry) -> None:
        self._admission.ended(entry.session)
        if self._live.get(key) is entry:
            del self._live[key]
        if entry.detach_timer is not None:
            entry.detach_timer.cancel()
            entry.detach_timer = None
        if entry.is_kept and isinstance(entry.session.log.outcome, Completed) and self._bounds.replay_time_s > 0:
            entry.finished_at = self._clock()
            entry.size_bytes = entry.session.size_bytes
            self._finished[key] = entry
            self._finished_bytes += entry.size_bytes
            while self._is_over_bounds():
                self._forget_oldest()

    def _released(self, session: Session) -> None:
        self._admission.released(session)
        self._unreleased.discard(session)
        if not self._unreleased:
            self._all_released.set()

    def _drop(self, key: Key, entry: _Entry, error: ServiceError) -> None:
        if self._finished.get(key) is entry:
            del self._finished[key]
            self._finished_bytes -= entry.size_bytes
        else:
            entry.session.end(error)

    def _is_over_bounds(self) -> bool:
        return bool(self._finished) and (
            self._finished_bytes > self._bounds.replay_bytes or len(self._finished) > self._bounds.replay_count
        )

    def _is_forgettable(self, entry: _Entry, now: float) -> bool:
        return now - entry.finished_at >= self._bounds.replay_time_s

    def _forget_oldest(self) -> None:
        _, entry = self._finished.popitem(last=False)
        self._finished_bytes -= entry.size_bytes


def _reader_for(session: Session, generation: Generation) -> LogReader | None:
    held: list[tuple[int, ...]] = [()] * generation.count
    finished = [False] * generation.count
    if generation.resume is not None:
        for output in generation.resume.outputs:
            held[output.output_index] = output.token_ids
            finished[output.output_index] = output.finished
    return session.log.reader_after(held, finished)
