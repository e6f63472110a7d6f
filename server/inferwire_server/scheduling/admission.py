"""May this generation enter, and when does it go to the engine: the policies applied, in two stages.

The cheap stage (`check_open`) costs nothing and comes before any work on the prompt. The exact one (`submit`) knows the
tokens. A generation that passed both waits in the fair queue until the engine has room.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial

from inferwire_server.domain.caller import Caller
from inferwire_server.domain.engine import Engine, EngineRequest, EngineState
from inferwire_server.domain.errors import EngineDown, Overloaded, ServiceError, WouldExceed
from inferwire_server.domain.generation import Priority, Progress, Stage
from inferwire_server.scheduling.admission_policy import AdmissionPolicy
from inferwire_server.scheduling.cache_sharing import SoleTenant
from inferwire_server.scheduling.drain_rate import DrainRate
from inferwire_server.scheduling.estimator import Estimator, Run, require_in_time
from inferwire_server.scheduling.fair_queue import FairQueue
from inferwire_server.scheduling.generation_names import cache_namespace
from inferwire_server.scheduling.lifecycle import RESTART_HINT_S, Lifecycle
from inferwire_server.scheduling.load_report import LoadReporter
from inferwire_server.scheduling.priority_class import Ahead
from inferwire_server.scheduling.quota_use import demand_of, settle
from inferwire_server.scheduling.session import Phase, Session
from inferwire_server.scheduling.session_output import SessionOutput
from inferwire_server.scheduling.staggering import Leader, Staggering
from inferwire_server.scheduling.ticket import Ticket
from inferwire_server.security.quotas import Quotas, Reservation

_LEAST_TIME_S = 0.01
"""No engine answers sooner."""


@dataclass(slots=True)
class _Place:
    ticket: Ticket[Session]
    requests: list[EngineRequest]
    reservation: Reservation
    runs: dict[int, Run] = field(default_factory=dict)
    leader: Leader[Ticket[Session]] | None = None
    """Itself, while its prompt is in prefill and others with the same beginning wait for it."""


class Admission:
    """Runs on the serving loop. `max_queue_time_s` bounds the wait of requests without a deadline."""

    def __init__(
        self,
        engine: Engine,
        lifecycle: Lifecycle,
        queue: FairQueue[Session],
        reporter: LoadReporter,
        make_policy: Callable[[DrainRate], AdmissionPolicy],
        quotas: Quotas,
        *,
        max_queue_time_s: float,
        refuse_late: bool = True,
        sole_tenant: SoleTenant | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """`make_policy` is called once the engine has started, for its capabilities are not known before."""
        self._engine = engine
        self._lifecycle = lifecycle
        self._queue = queue
        self._reporter = reporter
        self._make_policy = make_policy
        self._quotas = quotas
        self._policy: AdmissionPolicy | None = None
        self._max_queue_time_s = max_queue_time_s
        self._refuse_late = refuse_late
        self._sole_tenant = sole_tenant
        self._clock = clock
        self._wall_clock = wall_clock
        self._estimator = Estimator()
        self._drain_rate = DrainRate()
        self._staggering: Staggering[Ticket[Session]] = Staggering()
        self._preparing = 0
        self._places: dict[Session, _Place] = {}
        self._is_pumping = False
        engine.subscribe(self._engine_changed)

    def __repr__(self) -> str:
        return f"<Admission {self._preparing} preparing, {self._queue.waiting} waiting, {self._queue.running} running>"

    @property
    def policy(self) -> AdmissionPolicy:
        """Valid once the engine has started."""
        if self._policy is None:
            self._policy = self._make_policy(self._drain_rate)
        return self._policy

    def check_open(self, caller: Caller, priority: Priority, deadline: float | None) -> None:
        """The cheap stage. Raises Starting, Draining, EngineDown, WouldExceed, QuotaExceeded or Overloaded."""
        now = self._clock()
        self._lifecycle.check(now)
        _require_time_left(deadline, now)
        self._quotas.check_arrival(caller.tenant, priority, now)
        if self._sole_tenant is not None:
            self._sole_tenant.check(caller, self._engine.capabilities)
        self.policy.check_arrival(
            self._queue, tenant=caller.tenant, priority=priority, preparing=self._preparing, now=now
        )

    @contextmanager
    def place(self) -> Iterator[None]:
        """Count a request whose prompt is being prepared."""
        self._preparing += 1
        try:
            yield
        finally:
            self._preparing -= 1

    def submit(self, session: Session) -> None:
        """The exact stage: queue the session, or raise why not; it may run before this returns."""
        now = self._clock()
        self._lifecycle.check(now)
        if not session.num_unfinished:
            session.begin(self._engine)
            return
        generation = session.generation
        _require_time_left(generation.deadline, now)
        prompt_tokens = len(generation.prompt_token_ids)
        kv_blocks = self.policy.kv_blocks(
            prompt_tokens=prompt_tokens,
            max_output_tokens=generation.max_output_tokens,
            count=session.num_unfinished,
        )
        if self._refuse_late:
            ahead = self._queue.ahead_of_newcomer(session.caller.tenant, generation.scheduling.priority)
            self._require_in_time(session, now, ahead)
        reservation = self._quotas.reserve(session.caller.tenant, demand_of(session), now=now, wall=self._wall_clock())
        ticket = self._queue.push(
            session,
            tenant=session.caller.tenant,
            priority=generation.scheduling.priority,
            prompt_tokens=prompt_tokens,
            now=now,
            slots=session.num_unfinished,
            kv_blocks=kv_blocks,
        )
        try:
            self._make_room(ticket, now)
        except Exception:
            reservation.cancel(now)
            raise
        place = self._places[session] = _Place(ticket, session.engine_requests(), reservation)
        session.on_first_token = self._first_token
        session.on_served = partial(self._served, place)
        self._pump()
        if session.phase is Phase.WAITING:
            self._arm_queue_time(session)

    def _make_room(self, ticket: Ticket[Session], now: float) -> None:
        try:
            displaced = self.policy.check_pushed(
                self._queue,
                ticket,
                free_slots=self._free_slots(),
                total_slots=self._engine.capabilities.max_running,
                now=now,
            )
        except Overloaded:
            self._queue.remove(ticket)
            raise
        for other in displaced:
            other.item.end(self.policy.overloaded(self._queue, now))

    def ended(self, session: Session) -> None:
        """Its outcome is known; a waiting one leaves the queue."""
        place = self._places.get(session)
        if place is None:
            return
        settle(place.reservation, session, self._clock())
        if place.ticket.is_waiting:
            del self._places[session]
            self._queue.remove(place.ticket)
            self._pump()

    def released(self, session: Session) -> None:
        """The engine holds nothing of it any more."""
        place = self._places.pop(session, None)
        if place is None:
            return
        now = self._clock()
        self._let_followers_go(place)
        for run in place.runs.values():
            self._estimator.released(run, now)
        if session.cached_tokens:
            self._queue.refund(place.ticket, session.cached_tokens)
        self._queue.release(place.ticket)
        self._drain_rate.released(now, waiting=self._queue.waiting)
        self._pump()

    def progress(self, session: Session) -> Progress:
        """Where a session is, with its place in the queue while it waits."""
        progress = session.progress()
        place = self._places.get(session)
        if progress.stage is not Stage.QUEUED or place is None or not place.ticket.is_waiting:
            return progress
        now = self._clock()
        forecast = self._estimator.forecast(
            prompt_tokens=place.ticket.prompt_tokens,
            now=now,
            free_slots=self._free_slots(),
            slots=place.ticket.slots,
            ahead=self._queue.ahead_of(place.ticket),
        )
        return replace(
            progress,
            queue_position=self._queue.position(place.ticket),
            estimated_wait_s=forecast.first_token_s or None,
        )

    def _require_in_time(self, session: Session, now: float, ahead: Ahead | None = None) -> None:
        generation = session.generation
        scheduling = generation.scheduling
        if generation.deadline is None and scheduling.first_token_target_s is None:
            return
        forecast = self._estimator.forecast(
            prompt_tokens=len(generation.prompt_token_ids),
            now=now,
            free_slots=self._free_slots(),
            slots=session.num_unfinished,
            ahead=ahead,
        )
        require_in_time(
            forecast,
            now=now,
            arrived_at=session.arrived_at,
            first_token_target_s=scheduling.first_token_target_s,
            deadline=generation.deadline,
            min_output_tokens=generation.stop.min_output_tokens,
        )

    def _arm_queue_time(self, session: Session) -> None:
        generation = session.generation
        limits = [limit for limit in (generation.scheduling.max_queue_time_s,) if limit is not None]
        if generation.deadline is None:
            limits.append(self._max_queue_time_s)
        if limits:
            session.call_at(session.arrived_at + min(limits), lambda: self._queue_time_is_up(session))
        target_s = generation.scheduling.first_token_target_s
        if target_s is not None:
            session.call_at(session.arrived_at + target_s, lambda: self._target_is_missed(session))

    def _target_is_missed(self, session: Session) -> None:
        if session.phase is Phase.WAITING:
            session.end(WouldExceed("still waiting when first_token_target passed"))

    def _queue_time_is_up(self, session: Session) -> None:
        if session.phase is Phase.WAITING:
            hint = self._drain_rate.retry_after_s(self._clock(), self._queue.waiting)
            session.end(Overloaded("still waiting after the longest queue time", retry_after_s=hint))

    def _free_slots(self) -> int:
        return max(0, self._engine.capabilities.max_running - self._queue.running_slots)

    def _pump(self) -> None:
        """Start whoever is next while the engine has room. Ends and starts inside do not nest."""
        if self._is_pumping or not self._queue.waiting:
            return
        self._is_pumping = True
        try:
            total = self._engine.capabilities.max_running
            while self._queue.waiting:
                ticket = self._queue.head(self._clock(), self._free_slots(), total)
                if ticket is None:
                    return
                session = ticket.item
                place = self._places[session]
                leader = self._leader_of(session)
                if leader is not None:
                    self._queue.set_aside(ticket)
                    leader.followers.append(ticket)
                    continue
                if self._is_prefill_busy() or not self._engine.room_for(place.requests):
                    return
                if not self._refuse_late or self._is_still_in_time(session):
                    self._start(session, place)
        finally:
            self._is_pumping = False

    def _is_prefill_busy(self) -> bool:
        """Whether enough prompts are in prefill for the engine's next step: whoever waits longer may still be overtaken
        by a request that is more urgent or whose tenant has had less."""
        enough = self._engine.capabilities.prefill_tokens_per_step
        return enough is not None and self._estimator.pending_prompt_tokens >= enough

    def _is_still_in_time(self, session: Session) -> bool:
        """Its turn has come: the last moment at which what would come too late costs nothing."""
        try:
            self._require_in_time(session, self._clock())
        except WouldExceed as refusal:
            session.end(refusal)
            return False
        return True

    def _start(self, session: Session, place: _Place) -> None:
        self._queue.pop(place.ticket)
        try:
            session.begin(self._engine)
        except ServiceError:
            return
        now = self._clock()
        self._reporter.prompt_started(session)
        generation = session.generation
        if self._is_staggered(session):
            place.leader = self._staggering.began(generation.prompt_token_ids, self._namespace(session))
        for output in session.unfinished_outputs():
            place.runs[output.index] = self._estimator.started(
                output,
                prompt_tokens=len(generation.prompt_token_ids),
                max_output_tokens=generation.max_output_tokens,
                now=now,
            )

    def _is_staggered(self, session: Session) -> bool:
        capabilities = self._engine.capabilities
        is_cached = capabilities.prefix_caching and not session.generation.bypass_cache
        return is_cached and not capabilities.shares_prefill

    def _leader_of(self, session: Session) -> Leader[Ticket[Session]] | None:
        if not self._is_staggered(session):
            return None
        return self._staggering.leader_of(session.generation.prompt_token_ids, self._namespace(session))

    def _namespace(self, session: Session) -> str:
        if not self._engine.capabilities.has_cache_salt:
            return ""
        return cache_namespace(session.caller.tenant, session.generation.cache_salt)

    def _let_followers_go(self, place: _Place) -> None:
        leader, place.leader = place.leader, None
        if leader is not None:
            self._queue.bring_back(self._staggering.ended(leader))

    def _first_token(self, session: Session, output: SessionOutput) -> None:
        place = self._places.get(session)
        if place is None:
            return
        self._let_followers_go(place)
        run = place.runs.get(output.index)
        if run is not None:
            self._estimator.first_token(run, self._clock())
        self._pump()

    def _served(self, place: _Place, session: Session, count: int) -> None:
        self._queue.charge(place.ticket, count)
        self._reporter.output_served(session, count)

    def _engine_changed(self) -> None:
        self._lifecycle.notify()
        if self._engine.health().state in (EngineState.DEAD, EngineState.STARTING):
            for session, place in list(self._places.items()):
                if place.ticket.is_waiting:
                    session.end(EngineDown("the engine is down and being restarted", retry_after_s=RESTART_HINT_S))
        elif self._places:
            self._pump()


def _require_time_left(deadline: float | None, now: float) -> None:
    """Raise WouldExceed for a request that comes too late to be of use to anybody."""
    if deadline is not None and deadline - now < _LEAST_TIME_S:
        left_ms = max(0.0, deadline - now) * 1000
        raise WouldExceed(f"the deadline is in {left_ms:.0f} ms, too soon for a first token")
