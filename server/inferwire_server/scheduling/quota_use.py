"""What a session asks of its tenant's quota, and what it has used in the end: each token once.

A session is one generation, however many calls attach to it, replay it or come back for it, so those cost nothing. A
stream that goes on from tokens which the caller holds already asks for the rest of them only.
"""

from __future__ import annotations

from inferwire_server.domain.errors import CancelledByCaller, Expired
from inferwire_server.domain.generation import Completed
from inferwire_server.scheduling.session import Session
from inferwire_server.security.quota import Demand, Work
from inferwire_server.security.quotas import Reservation


def demand_of(session: Session) -> Demand:
    """At the worst, every output has all its tokens."""
    generation = session.generation
    resume = generation.resume
    return Demand(
        priority=generation.scheduling.priority,
        prompt_tokens=len(generation.prompt_token_ids),
        max_output_tokens=generation.max_output_tokens,
        output_tokens=sum([request.max_output_tokens for request in session.engine_requests()]),
        resumes=None if resume is None else (generation.request_id, resume.prompt_digest),
    )


def settle(reservation: Reservation, session: Session, now: float) -> None:
    """It has ended. One that the engine never took costs a request if it was the caller who left, else nothing."""
    started = session.log.started
    outcome = session.log.outcome
    if started is None and not isinstance(outcome, (CancelledByCaller, Expired)):
        reservation.cancel(now)
        return
    left_off: Work | None = None
    if started is not None and not isinstance(outcome, Completed):
        left_off = (session.generation.request_id, started.prompt_digest)
    reservation.settle(
        output_tokens=session.produced_tokens, has_started=started is not None, now=now, left_off=left_off
    )
