"""What becomes of generations: times, tokens, outcomes."""

from __future__ import annotations

from collections.abc import Iterable

from inferwire_server.domain.caller import Caller
from inferwire_server.domain.errors import CancelledByCaller, Expired, ServiceError, WouldExceed
from inferwire_server.domain.generation import Completed, Generation, Priority
from inferwire_server.observability.buckets import FIRST_TOKEN_BUCKETS, GAP_BUCKETS, REQUEST_BUCKETS
from inferwire_server.observability.tallies import TallyCollector
from inferwire_server.observability.tenant_names import TenantNames


class GenerationMetrics:
    """Observes generations. Everything is bound before the first one, so that each rate starts at zero."""

    def __init__(self, tallies: TallyCollector, tenants: TenantNames) -> None:
        self._tenants = tenants
        histogram, counter, counters = tallies.histogram, tallies.counter, tallies.counters
        first_token = tallies.histograms(
            "inferwire_time_to_first_token_seconds",
            "Arrival to the first token of a generation.",
            ("priority",),
            FIRST_TOKEN_BUCKETS,
        )
        queue = tallies.histograms(
            "inferwire_queue_seconds", "Arrival to the engine.", ("priority",), FIRST_TOKEN_BUCKETS
        )
        request = tallies.histograms("inferwire_request_seconds", "Arrival to the end.", ("priority",), REQUEST_BUCKETS)
        self._first_token = {each: first_token.labels(each.name.lower()) for each in Priority}
        self._queue = {each: queue.labels(each.name.lower()) for each in Priority}
        self._request = {each: request.labels(each.name.lower()) for each in Priority}
        self._gap = histogram(
            "inferwire_inter_token_seconds",
            "Between an output's consecutive engine steps that brought tokens.",
            GAP_BUCKETS,
        )
        self._prefill = histogram(
            "inferwire_prefill_seconds",
            "From the engine's taking a generation to its first token.",
            FIRST_TOKEN_BUCKETS,
        )
        self._decode = histogram("inferwire_decode_seconds", "First token to the end.", REQUEST_BUCKETS)
        self.prompt_tokens = counter("inferwire_prompt_tokens", "Prompt tokens of generations the engine took.")
        self.output_tokens = counter("inferwire_output_tokens", "Output tokens the engine produced.")
        self._cached_tokens = counter("inferwire_cached_tokens", "Prompt tokens taken from the prefix cache.")
        self._wasted_tokens = counter(
            "inferwire_wasted_tokens", "Output tokens of generations that did not end well, counted at their end."
        )
        outcomes = counters(
            "inferwire_generations",
            "Requests for a generation by how they ended, refused ones included.",
            ("outcome",),
        )
        self._outcomes = {name: outcomes.labels(name) for name in OUTCOMES}
        self._tenant_outcomes = counters("inferwire_tenant_generations", "The same by tenant.", ("tenant", "outcome"))
        self._tenant_tokens = counters(
            "inferwire_tenant_tokens",
            "Tokens by tenant: prompt ones when the engine takes them, output ones at the end.",
            ("tenant", "kind"),
        )
        self._tenant_first_token = tallies.histograms(
            "inferwire_tenant_time_to_first_token_seconds",
            "Arrival to the first token by tenant.",
            ("tenant",),
            FIRST_TOKEN_BUCKETS,
        )
        for tenant in tenants.labels:
            self._tenant_first_token.labels(tenant)
            for kind in ("prompt", "output"):
                self._tenant_tokens.labels(tenant, kind)
            for outcome in OUTCOMES:
                self._tenant_outcomes.labels(tenant, outcome)

    def refused(self, caller: Caller, error: ServiceError) -> None:
        self._count_outcome(caller, error)

    def started(self, generation: Generation, caller: Caller, queue_time_s: float) -> None:
        self._queue[generation.scheduling.priority].observe(queue_time_s)
        tokens = len(generation.prompt_token_ids)
        self.prompt_tokens.inc(tokens)
        self._tenant_tokens.labels(self._tenants.label(caller.tenant), "prompt").inc(tokens)

    def first_token(
        self, generation: Generation, caller: Caller, since_arrival_s: float, since_started_s: float
    ) -> None:
        self._first_token[generation.scheduling.priority].observe(since_arrival_s)
        self._prefill.observe(since_started_s)
        self._tenant_first_token.labels(self._tenants.label(caller.tenant)).observe(since_arrival_s)

    def tokens(self, generation: Generation, caller: Caller, count: int, gap_s: float | None) -> None:
        self.output_tokens.total += count
        if gap_s is not None:
            self._gap.observe(gap_s)

    def ended(
        self,
        generation: Generation,
        caller: Caller,
        outcome: Completed | ServiceError,
        total_s: float,
        decode_s: float | None,
        produced_tokens: int,
    ) -> None:
        self._request[generation.scheduling.priority].observe(total_s)
        if decode_s is not None:
            self._decode.observe(decode_s)
        if not isinstance(outcome, Completed):
            self._wasted_tokens.inc(produced_tokens)
        elif outcome.usage.cached_tokens:
            self._cached_tokens.inc(outcome.usage.cached_tokens)
        self._tenant_tokens.labels(self._tenants.label(caller.tenant), "output").inc(produced_tokens)
        self._count_outcome(caller, outcome)

    def _count_outcome(self, caller: Caller, outcome: Completed | ServiceError) -> None:
        name = outcome_name(type(outcome))
        self._outcomes[name].inc()
        self._tenant_outcomes.labels(self._tenants.label(caller.tenant), name).inc()


def outcome_name(kind: type[object]) -> str:
    """The outcome label: ok, cancelled, deadline, or the error's kind in snake case."""
    if issubclass(kind, Completed):
        return "ok"
    if issubclass(kind, CancelledByCaller):
        return "cancelled"
    if issubclass(kind, (Expired, WouldExceed)):
        return "deadline"
    return "".join("_" + c.lower() if c.isupper() else c for c in kind.__name__).lstrip("_")


def _leaves(family: type[ServiceError]) -> Iterable[type[ServiceError]]:
    members = family.__subclasses__()
    return (leaf for member in members for leaf in _leaves(member)) if members else (family,)


_KINDS: tuple[type[object], ...] = (Completed, *_leaves(ServiceError))
OUTCOMES = tuple(dict.fromkeys(map(outcome_name, _KINDS)))
"""Every value that the label has."""
