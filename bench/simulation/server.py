"""The server's own policies in front of a simulated engine, under a virtual clock."""

from __future__ import annotations

import heapq
import math
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from inferwire_server.domain.engine import Capabilities
from inferwire_server.domain.errors import Overloaded, WouldExceed
from inferwire_server.domain.generation import Priority
from inferwire_server.scheduling.admission_policy import AdmissionPolicy, Bounds
from inferwire_server.scheduling.drain_rate import DrainRate
from inferwire_server.scheduling.estimator import Estimator, Forecast, Run, require_in_time
from inferwire_server.scheduling.fair_queue import FairQueue
from inferwire_server.scheduling.ticket import Ticket

from bench.simulation.engine import Job, SimulatedEngine, StepCosts
from bench.simulation.workload import Outcome, Request

SLOTS = 32
CONTEXT_TOKENS = 4096
UNBOUNDED = Bounds(waiting_requests=sys.maxsize, waiting_prompt_tokens=sys.maxsize)
BOUNDED = Bounds(waiting_requests=128, waiting_prompt_tokens=256_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Policies:
    """What stands between callers and engine."""

    make_queue: Callable[[], FairQueue[Request]] = FairQueue
    bounds: Bounds = BOUNDED
    predicts: bool = True
    """Whether requests whose first token cannot come in time are refused."""
    prefill_ahead_tokens: int = 512
    """No prompt is started while so many prompt tokens are under way: what the engine computes in one step."""
    preempts_batch: bool = False
    """Whether a waiting request of a higher class ends a running batch output, which goes on later."""


@dataclass(slots=True, eq=False)
class _Started:
    """A request in the engine."""

    request: Request
    ticket: Ticket[Request]
    run: Run
    job: Job[_Started] = field(init=False)


class SimulatedServer:
    """Admits, queues, starts, expires and accounts for requests. One run an instance."""

    def __init__(self, policies: Policies, *, slots: int = SLOTS, costs: StepCosts | None = None) -> None:
        self._policies = policies
        self._engine: SimulatedEngine[_Started] = SimulatedEngine(slots=slots, costs=costs or StepCosts())
        self._queue = policies.make_queue()
        self._drain_rate = DrainRate()
        capabilities = Capabilities(request_fields=frozenset(), max_running=slots, max_context_tokens=CONTEXT_TOKENS)
        self._admission = AdmissionPolicy(capabilities, policies.bounds, self._drain_rate)
        self._estimator = Estimator()
        self._arrivals: list[tuple[float, int, Request]] = []
        self._timers: list[tuple[float, int, Ticket[Request]]] = []
        self._numbers = 0
        self._running: dict[Ticket[Request], _Started] = {}
        self._ended_callbacks: list[Callable[[Request, float], None]] = []
        self._waiting_for_release: list[float] = []
        self.release_waits_s: list[float] = []
        """For each arrival that found every slot taken: seconds until the next slot was released."""
        self.now = 0.0

    def offer(self, requests: Iterable[Request]) -> None:
        """Add requests to come."""
        for request in requests:
            heapq.heappush(self._arrivals, (request.arrived_at, self._numbers, request))
            self._numbers += 1

    def on_ended(self, callback: Callable[[Request, float], None]) -> None:
        """Call when a request has ended, with the time."""
        self._ended_callbacks.append(callback)

    def run(self, *, until_s: float = math.inf) -> None:
        """Until everything offered has ended, or until the time."""
        while self.now < until_s:
            if self._engine.running == 0 and not self._advance_to_next_event(until_s):
                return
            step_ends_at = self.now + self._engine.begin()
            self._handle_events(before=step_ends_at)
            self.now = step_ends_at
            self._finish_step()

    def _advance_to_next_event(self, until_s: float) -> bool:
        """With an idle engine: handle what comes next until something runs; False when nothing comes."""
        while self._engine.running == 0:
            times = [events[0][0] for events in (self._arrivals, self._timers) if events]
            if not times or min(times) >= until_s:
                return False
            self._handle_events(before=math.nextafter(min(times), math.inf))
        return True

    def _handle_events(self, *, before: float) -> None:
        while True:
            arrival = self._arrivals[0][0] if self._arrivals else math.inf
            timer = self._timers[0][0] if self._timers else math.inf
            if min(arrival, timer) >= before:
                return
            self.now = min(arrival, timer)
            if timer <= arrival:
                self._on_timer(heapq.heappop(self._timers)[2])
            else:
                self._on_arrival(heapq.heappop(self._arrivals)[2])

    @property
    def _free_slots(self) -> int:
        return self._engine.slots - self._engine.running

    @property
    def _startable_slots(self) -> int:
        has_prefill_ahead = self._estimator.pending_prompt_tokens >= self._policies.prefill_ahead_tokens
        return 0 if has_prefill_ahead else self._free_slots

    def _on_arrival(self, request: Request) -> None:
        now, queue = self.now, self._queue
        if self._free_slots == 0:
            self._waiting_for_release.append(now)
        try:
            self._admission.check_arrival(queue, tenant=request.tenant, priority=request.priority, preparing=0, now=now)
            self._check_forecast(request)
        except Overloaded:
            self._end(request, Outcome.OVERLOADED)
            return
        except WouldExceed:
            self._end(request, Outcome.WOULD_EXCEED)
            return
        ticket = self._push(request)
        try:
            displaced = self._admission.check_pushed(
                queue, ticket, free_slots=self._startable_slots, total_slots=self._engine.slots, now=now
            )
        except Overloaded:
            queue.remove(ticket)
            self._end(request, Outcome.OVERLOADED)
            return
        for each in displaced:
            queue.remove(each)
            self._end(each.item, Outcome.OVERLOADED)
        self._start_waiting()

    def _push(self, request: Request) -> Ticket[Request]:
        """A preempted request comes back with its output so far as part of its prompt."""
        ticket = self._queue.push(
            request,
            tenant=request.tenant,
            priority=request.priority,
            prompt_tokens=request.prompt_tokens + request.produced_tokens,
            now=self.now,
        )
        ends_at = request.deadline
        if self._policies.predicts and request.first_token_target_s is not None and request.first_token_at is None:
            ends_at = min(ends_at, request.arrived_at + request.first_token_target_s)
        heapq.heappush(self._timers, (ends_at, self._numbers, ticket))
        self._numbers += 1
        return ticket

    def _check_forecast(self, request: Request) -> None:
        if not self._policies.predicts:
            return
        forecast = self._estimator.forecast(
            prompt_tokens=request.prompt_tokens,
            now=self.now,
            free_slots=self._free_slots,
            ahead=self._queue.ahead_of_newcomer(request.tenant, request.priority),
        )
        request.forecast_s = forecast.first_token_s
        self._require_in_time(request, forecast)

    def _can_still_make_it(self, ticket: Ticket[Request]) -> bool:
        request = ticket.item
        if not self._policies.predicts or request.first_token_at is not None:
            return True
        forecast = self._estimator.forecast(
            prompt_tokens=ticket.prompt_tokens, now=self.now, free_slots=self._free_slots
        )
        try:
            self._require_in_time(request, forecast)
        except WouldExceed:
            return False
        return True

    def _require_in_time(self, request: Request, forecast: Forecast) -> None:
        require_in_time(
            forecast,
            now=self.now,
            arrived_at=request.arrived_at,
            first_token_target_s=request.first_token_target_s,
            deadline=request.deadline,
        )

    def _start_waiting(self) -> None:
        while (ticket := self._queue.head(self.now, self._startable_slots, self._engine.slots)) is not None:
            if self._can_still_make_it(ticket):
                self._start(ticket)
            else:
                self._queue.remove(ticket)
                self._end(ticket.item, Outcome.WOULD_EXCEED)
        if self._policies.preempts_batch and self._free_slots == 0:
            self._preempt()

    def _start(self, ticket: Ticket[Request]) -> None:
        request = ticket.item
        self._queue.pop(ticket)
        request.started_at = request.started_at or self.now
        run = self._estimator.started(
            ticket,
            prompt_tokens=ticket.prompt_tokens,
            max_output_tokens=request.max_output_tokens - request.produced_tokens,
            now=self.now,
        )
        started = _Started(request, ticket, run)
        started.job = Job(started, ticket.prompt_tokens, request.true_output_tokens - request.produced_tokens)
        self._running[ticket] = started
        self._engine.submit(started.job)
        heapq.heappush(self._timers, (request.deadline, self._numbers, ticket))
        self._numbers += 1

    def _preempt(self) -> None:
        """End as many batch outputs as requests of higher classes wait, those cheapest to compute again first."""
        waiting = self._queue.waiting_in(Priority.INTERACTIVE) + self._queue.waiting_in(Priority.STANDARD)
        ending = sum(each.job.is_cancelled for each in self._running.values())
        batch = [each for each in self._running.values() if each.request.priority is Priority.BATCH]
        batch = [each for each in batch if not each.job.is_cancelled]
        batch.sort(key=lambda each: each.request.prompt_tokens + each.request.produced_tokens)
        for victim in batch[: max(0, waiting - ending)]:
            victim.job.is_cancelled = True
            victim.request.preemptions += 1

    def _on_timer(self, ticket: Ticket[Request]) -> None:
        if ticket.is_waiting:
            self._queue.remove(ticket)
            is_over = self.now >= ticket.item.deadline
            self._end(ticket.item, Outcome.EXPIRED if is_over else Outcome.WOULD_EXCEED)
        elif ticket in self._running and self.now >= ticket.item.deadline:
            self._running[ticket].job.is_cancelled = True

    def _finish_step(self) -> None:
        now = self.now
        step = self._engine.finish()
        for job in step.produced:
            started = job.item
            self._queue.charge(started.ticket, 1)
            started.request.produced_tokens += 1
            if job.produced == 1:
                self._estimator.first_token(started.run, now)
                if started.request.first_token_at is None:
                    started.request.first_token_at = now
        for job in step.ended:
            self._release(job)
        if step.ended:
            self.release_waits_s += [now - since for since in self._waiting_for_release]
            self._waiting_for_release.clear()
        self._start_waiting()

    def _release(self, job: Job[_Started]) -> None:
        started, request = job.item, job.item.request
        self._drain_rate.released(self.now, waiting=self._queue.waiting)
        self._queue.release(started.ticket)
        self._estimator.released(started.run, self.now)
        del self._running[started.ticket]
        request.prefilled_tokens += job.prefilled
        if not job.is_cancelled:
            self._end(request, Outcome.COMPLETED)
        elif self.now >= request.deadline:
            self._end(request, Outcome.EXPIRED)
        else:
            self._push(request)

    def _end(self, request: Request, outcome: Outcome) -> None:
        request.outcome = outcome
        request.ended_at = self.now
        for callback in self._ended_callbacks:
            callback(request, self.now)
