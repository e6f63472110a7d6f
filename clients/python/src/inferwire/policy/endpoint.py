"""Everything that is known of one endpoint when a call is placed."""

from __future__ import annotations

import math
from random import Random

from inferwire.policy.breaker import Breaker, BreakerState, StateChanged
from inferwire.policy.latency import FirstTokenTime
from inferwire.policy.throttle import AdaptiveThrottle
from inferwire.settings import BreakerPolicy, ThrottlePolicy

_LONGEST_PUSHBACK_S = 5.0


class EndpointState:
    """The live state of one endpoint."""

    def __init__(
        self,
        key: str,
        *,
        region: str,
        priority: int,
        breaker: BreakerPolicy,
        throttle: ThrottlePolicy,
        rng: Random,
        stands_for_many: bool = False,
        breaker_changed: StateChanged | None = None,
    ) -> None:
        self.key = key
        """Unique in a client."""
        self.region = region
        self.priority = priority
        """Of the region; smaller is nearer."""
        self.stands_for_many = stands_for_many
        """Whether something else balances behind it: a call that failed there may go there again."""
        self.breaker = Breaker(key, breaker, rng, changed=breaker_changed)
        self.throttle = AdaptiveThrottle(throttle)
        self.first_token = FirstTokenTime()
        self.is_serving: bool | None = None
        """What its health service says; None when it says nothing."""
        self.is_cut_off = False
        """Whether the connection on which it had said so is lost; a call that has failed elsewhere goes there last."""
        self.outstanding = 0.0
        """Work that it holds for this client, in any one unit."""
        self._pushes_back_until = 0.0
        self._blamed_at = -math.inf

    def begin(self, work: float = 1.0) -> None:
        """Count work sent to it."""
        self.outstanding += work

    def end(self, work: float = 1.0) -> None:
        """Count that work done or lost."""
        self.outstanding = max(0.0, self.outstanding - work)

    def push_back(self, hint_s: float, now: float) -> None:
        """Prefer other endpoints for the time that it asked for, at most 5 s. `now` in monotonic seconds."""
        self._pushes_back_until = max(self._pushes_back_until, now + min(hint_s, _LONGEST_PUSHBACK_S))

    def pushes_back(self, now: float) -> bool:
        """Whether it asked for time that has not passed."""
        return now < self._pushes_back_until

    def is_to_blame(self, began: float, now: float) -> bool:
        """Whether the failure of an attempt that `began` then counts. Both in monotonic seconds.

        Behind a name for many servers, calls lost together are one loss: a failure counts only if its attempt began
        after the last one that did.
        """
        counts = not self.stands_for_many or began > self._blamed_at
        if counts:
            self._blamed_at = now
        return counts

    @property
    def is_healthy(self) -> bool:
        """Whether it counts as up for its region: it does not say otherwise and its breaker is closed."""
        return self.is_serving is not False and self.breaker.state is BreakerState.CLOSED

    def __repr__(self) -> str:
        health = {None: "health unknown", True: "serving", False: "not serving"}[self.is_serving]
        expected = self.first_token.expected_s
        wait = "unknown" if expected is None else f"{expected:.3f} s"
        return (
            f"<Endpoint {self.key} {health}, breaker {self.breaker.state}, {self.outstanding:g} outstanding, "
            f"first token {wait}>"
        )
