"""Which endpoint takes an attempt: the nearest region that may, and inside it the less busy of two drawn at random."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from random import Random

from inferwire.errors import LocalReason
from inferwire.policy.affinity import by_affinity
from inferwire.policy.breaker import BreakerState, Permit
from inferwire.policy.endpoint import EndpointState
from inferwire.policy.visits import Visits
from inferwire.settings import AffinityPolicy, FailoverPolicy

_priority = attrgetter("priority")
_SOONEST_OVER_FIRST = (
    LocalReason.THROTTLED,
    LocalReason.TOO_SLOW,
    LocalReason.BREAKER_OPEN,
    LocalReason.ALREADY_TRIED,
    LocalReason.NOT_SERVING,
)


@dataclass(frozen=True, slots=True)
class Picked:
    """Where to send. The permit must be settled or abandoned."""

    endpoint: EndpointState
    permit: Permit


@dataclass(frozen=True, slots=True)
class Refused:
    """Nowhere to send; every allowed region with the reason."""

    regions: Mapping[str, LocalReason]


class Picker:
    """Places attempts. Endpoints come from the caller, so that what is not allowed is not there to be picked."""

    def __init__(self, policy: FailoverPolicy, rng: Random, *, affinity: AffinityPolicy | None = None) -> None:
        self._policy = policy
        self._bounded_load = (affinity or AffinityPolicy()).bounded_load
        self._rng = rng

    def pick(
        self,
        endpoints: Sequence[EndpointState],
        shares: Mapping[str, float],
        visits: Visits,
        now: float,
        *,
        may_return: bool = False,
        fits_within_s: float | None = None,
        key: bytes | None = None,
    ) -> Picked | Refused:
        """An endpoint for one attempt, with its permit.

        `shares` has every allowed region and the chance, 0 to 1, with which a call that has come to its priority level
        may stay in it. `may_return` admits endpoints that the call has tried and whose time has come. `fits_within_s`
        leaves out those whose first token is expected later. Calls with the same `key` prefer the same endpoint of a
        region. `now` in monotonic seconds.
        """
        if visits.is_empty and fits_within_s is None:
            due = _due(endpoints, now)
            if due is not None:
                return self._grant(due, now)
            calm = _calm(endpoints, shares, now)
            if calm:
                return self._grant(self._choose(calm, now, key), now)
        reasons = {
            endpoint: self._obstacle(endpoint, visits, now, may_return=may_return, fits_within_s=fits_within_s)
            for endpoint in endpoints
        }
        usable = [endpoint for endpoint, reason in reasons.items() if reason is None]
        willing = [one for one in usable if not self._chance(one.throttle.skip_probability(now))]
        if usable and not willing and visits.is_empty:
            return _refused(shares, {**reasons, **dict.fromkeys(usable, LocalReason.THROTTLED)})
        if (not usable or visits.is_empty) and self._is_panic(endpoints) and self._chance(self._policy.panic_share):
            farthest = min((one.priority for one in usable), default=None)
            early = [
                endpoint
                for endpoint, reason in reasons.items()
                if reason is LocalReason.BREAKER_OPEN
                and endpoint.breaker.admits(now, early=True)
                and (farthest is None or endpoint.priority <= farthest)
            ]
            if early:
                return self._grant(self._least_busy(_nearest(early, visits), now), now, early=True)
        if usable:
            return self._grant(self._place(willing or usable, shares, visits, now, key), now)
        return _refused(shares, reasons)

    def pick_beside(
        self, busy: EndpointState, endpoints: Sequence[EndpointState], shares: Mapping[str, float], now: float
    ) -> Picked | None:
        """Another endpoint for a second attempt beside one that is slow, if one is well and has room to spare.

        Never in a region where a breaker is being probed.
        """
        probed = {one.region for one in endpoints if one.breaker.state is BreakerState.HALF_OPEN}
        fit = [
            one
            for one in endpoints
            if one is not busy
            and one.region not in probed
            and one.is_healthy
            and not one.pushes_back(now)
            and not one.throttle.skip_probability(now)
            and shares[one.region] > 0.0
        ]
        return self._grant(self._place(fit, shares, Visits(), now, None), now) if fit else None

    def pick_only(self, endpoint: EndpointState, now: float) -> Picked | Refused:
        """That endpoint, if it takes calls."""
        reason = self._obstacle(endpoint, Visits(), now, may_return=False, fits_within_s=None)
        return self._grant(endpoint, now) if reason is None else Refused({endpoint.region: reason})

    def _obstacle(
        self, endpoint: EndpointState, visits: Visits, now: float, *, may_return: bool, fits_within_s: float | None
    ) -> LocalReason | None:
        if endpoint.is_serving is False:
            return LocalReason.NOT_SERVING
        is_tried = visits.has_tried(endpoint.key) and not endpoint.stands_for_many
        if is_tried and not (may_return and visits.may_return(endpoint.key, now)):
            return LocalReason.ALREADY_TRIED
        if fits_within_s is not None and (endpoint.first_token.expected_s or 0.0) > fits_within_s:
            return LocalReason.TOO_SLOW
        return None if endpoint.breaker.admits(now) else LocalReason.BREAKER_OPEN

    def _place(
        self,
        endpoints: list[EndpointState],
        shares: Mapping[str, float],
        visits: Visits,
        now: float,
        key: bytes | None,
    ) -> EndpointState:
        held_back = self._held_back(endpoints, shares)
        others = [one for one in endpoints if one.key != visits.last or one.stands_for_many]
        preferred = [
            one
            for one in others
            # A region that is left for its health comes back only if somebody looks.
            if (one.region not in held_back or one.breaker.state is not BreakerState.CLOSED)
            and not (one.is_cut_off and not visits.is_empty)
            and not one.pushes_back(now)
            and not visits.has_left(one.region)
        ]
        return self._choose(_nearest(preferred or others or endpoints, visits), now, key)

    def _held_back(self, endpoints: Iterable[EndpointState], shares: Mapping[str, float]) -> set[str]:
        """Regions that this call does not stay in; one draw for all regions of a priority level."""
        draws: dict[int, float] = {}
        held_back = set()
        for region, priority in dict.fromkeys((one.region, one.priority) for one in endpoints):
            if shares[region] < 1.0 and draws.setdefault(priority, self._rng.random()) >= shares[region]:
                held_back.add(region)
        return held_back

    def _is_panic(self, endpoints: Sequence[EndpointState]) -> bool:
        """Whether what all regions together can take is a small part of the traffic, and a breaker may be why."""
        states = [one for one in endpoints if one.is_serving is not False]
        if not states or all(one.breaker.state is BreakerState.CLOSED for one in states):
            return False
        healthy: dict[int, list[bool]] = {}
        for one in endpoints:
            healthy.setdefault(one.priority, []).append(one.is_healthy)
        abilities = [min(1.0, self._policy.overprovision * sum(each) / len(each)) for each in healthy.values()]
        return not any(abilities) or sum(abilities) < self._policy.panic_below

    def _choose(self, endpoints: Sequence[EndpointState], now: float, key: bytes | None) -> EndpointState:
        if key is None or len(endpoints) == 1:
            return self._least_busy(endpoints, now)
        return by_affinity(key, endpoints, self._bounded_load)

    def _chance(self, probability: float) -> bool:
        return probability > 0.0 and self._rng.random() < probability

    def _least_busy(self, endpoints: Sequence[EndpointState], now: float) -> EndpointState:
        """The power of two choices on (outstanding + 1) x expected first token."""
        if len(endpoints) == 1:
            return endpoints[0]
        first = self._rng.randrange(len(endpoints))
        second = (first + 1 + self._rng.randrange(len(endpoints) - 1)) % len(endpoints)
        one, other = endpoints[first], endpoints[second]
        one_s, other_s = one.first_token.weight(now), other.first_token.weight(now)
        # What was never measured is taken to be like the other, so that it is tried.
        one_s, other_s = one_s or other_s or 1.0, other_s or one_s or 1.0
        return one if (one.outstanding + 1.0) * one_s <= (other.outstanding + 1.0) * other_s else other

    def _grant(self, endpoint: EndpointState, now: float, *, early: bool = False) -> Picked:
        permit = endpoint.breaker.acquire(now, early=early)
        if permit is None:
            raise RuntimeError(f"{endpoint.key} was picked although its breaker admits nobody")
        return Picked(endpoint, permit)


def _due(endpoints: Sequence[EndpointState], now: float) -> EndpointState | None:
    """The nearest endpoint that says it serves and whose breaker waits for a probe.

    Also in a region that gets no traffic now: when it is needed, it must be known to be well.
    """
    due = [
        one
        for one in endpoints
        if one.breaker.state is not BreakerState.CLOSED
        and one.is_serving
        and one.breaker.admits(now)
        and not one.pushes_back(now)
    ]
    return min(due, key=_priority, default=None)


def _calm(endpoints: Sequence[EndpointState], shares: Mapping[str, float], now: float) -> list[EndpointState]:
    """The nearest endpoints if nothing at all speaks against any of them, as for nearly every call; else none."""
    if not endpoints:
        return []
    priority = min([one.priority for one in endpoints])
    nearest = [one for one in endpoints if one.priority == priority]
    for one in nearest:
        is_calm = one.breaker.state is BreakerState.CLOSED and one.is_serving is not False
        if not is_calm or shares[one.region] < 1.0 or one.pushes_back(now) or one.throttle.skip_probability(now):
            return []
    return nearest


def _nearest(endpoints: Sequence[EndpointState], visits: Visits) -> list[EndpointState]:
    """Those of the best region: not left by the call, then of smallest priority."""
    ranks = [(visits.has_left(one.region), one.priority) for one in endpoints]
    best = min(ranks)
    return [one for one, rank in zip(endpoints, ranks, strict=True) if rank == best]


def _refused(shares: Mapping[str, float], reasons: Mapping[EndpointState, LocalReason | None]) -> Refused:
    """One reason a region: of its endpoints' reasons the one that is soonest over."""
    by_region: dict[str, set[LocalReason]] = {region: set() for region in shares}
    for endpoint, reason in reasons.items():
        if reason is not None:
            by_region.setdefault(endpoint.region, set()).add(reason)
    return Refused(
        {
            region: next((reason for reason in _SOONEST_OVER_FIRST if reason in found), LocalReason.NO_ENDPOINT)
            for region, found in by_region.items()
        }
    )
