"""Every metric of the server is declared here. What happens for each token is a tally, which needs no lock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from inferwire_server.domain.caller import Caller
from inferwire_server.domain.engine import EngineLoad
from inferwire_server.domain.errors import CancelledByCaller, Expired, ServiceError, WouldExceed
from inferwire_server.domain.generation import Completed, Generation
from inferwire_server.observability.engine_gauges import EngineGauges
from inferwire_server.observability.tallies import TallyCollector

_LATENCY_BUCKETS = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 30.0, 60.0, 120.0,
)  # fmt: skip
_GAP_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.015, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What gauges show, read at each scrape."""

    waiting: int
    waiting_prompt_tokens: int
    running: int
    engine: EngineLoad
    engine_restarts: int
    is_ready: bool


class Metrics:
    """Observes generations and calls; owns a registry of its own."""

    def __init__(self, model: str) -> None:
        self.registry = CollectorRegistry()
        tallies = TallyCollector("model", model)
        self.registry.register(tallies)
        histogram, counter = tallies.histogram, tallies.counter

        def gauge(name: str, text: str) -> Gauge:
            return Gauge(name, text, ("model",), registry=self.registry).labels(model)

        self._ttft = histogram(
            "inferwire_time_to_first_token_seconds", "Arrival to the first token of a generation.", _LATENCY_BUCKETS
        )
        self._gap = histogram(
            "inferwire_inter_token_seconds",
            "Between an output's consecutive engine steps that brought tokens.",
            _GAP_BUCKETS,
        )
        self._queue = histogram("inferwire_queue_seconds", "Arrival to the engine.", _LATENCY_BUCKETS)
        self._prefill = histogram(
            "inferwire_prefill_seconds", "From the engine's taking a generation to its first token.", _LATENCY_BUCKETS
        )
        self._decode = histogram("inferwire_decode_seconds", "First token to the end.", _LATENCY_BUCKETS)
        self._end_to_end = histogram("inferwire_request_seconds", "Arrival to the end.", _LATENCY_BUCKETS)
        self._prompt_tokens = counter("inferwire_prompt_tokens", "Prompt tokens of generations the engine took.")
        self._output_tokens = counter("inferwire_output_tokens", "Output tokens the engine produced.")
        self._cached_tokens = counter("inferwire_cached_tokens", "Prompt tokens taken from the prefix cache.")
        self._outcomes = Counter(
            "inferwire_generations",
            "Requests for a generation by how they ended, refused ones included.",
            ("model", "outcome"),
            registry=self.registry,
        )
        self._model = model
        self._bound_outcomes: dict[str, Counter] = {}
        self._calls = Counter(
            "grpc_server_handled", "Finished calls.", ("grpc_method", "grpc_code"), registry=self.registry
        )
        self._started_calls = Counter("grpc_server_started", "Started calls.", ("grpc_method",), registry=self.registry)
        self._call_seconds = Histogram(
            "grpc_server_handling_seconds",
            "Duration of calls.",
            ("grpc_method",),
            registry=self.registry,
            buckets=_LATENCY_BUCKETS,
        )
        self._refusals = Counter(
            "inferwire_refusals", "Refused or failed calls by reason.", ("reason",), registry=self.registry
        )
        self._running = gauge("inferwire_running_generations", "Generations on the engine.")
        self._waiting = gauge("inferwire_waiting_generations", "Generations waiting for the engine.")
        self._waiting_tokens = gauge("inferwire_waiting_prompt_tokens", "Prompt tokens waiting for the engine.")
        self._kv_used = gauge("inferwire_kv_cache_usage_ratio", "Share of KV cache blocks in use or reserved, 0 to 1.")
        self._batch = gauge("inferwire_batch_size", "Sequences in the latest engine step.")
        self._step = gauge("inferwire_step_seconds", "Duration of the latest engine step.")
        self._ready = gauge("inferwire_ready", "1 when readiness is SERVING.")
        self._restarts = gauge("inferwire_engine_restarts", "Engine restarts since the process started.")
        self._canary_seconds = histogram(
            "inferwire_canary_seconds", "One-token generations that probe the engine.", _LATENCY_BUCKETS
        )
        self._canary_failures = counter("inferwire_canary_failures", "Probes of the engine that did not finish.")
        self._call_children: dict[str, tuple[Counter, Histogram]] = {}
        self._handled_children: dict[tuple[str, str], Counter] = {}

    def bind_gauges(self, snapshot: Callable[[], Snapshot]) -> None:
        """Read the gauges from `snapshot` at each scrape, in the scraping thread."""
        self._running.set_function(lambda: snapshot().running)
        self._waiting.set_function(lambda: snapshot().waiting)
        self._waiting_tokens.set_function(lambda: snapshot().waiting_prompt_tokens)
        self._kv_used.set_function(lambda: snapshot().engine.kv_utilization or 0.0)
        self._batch.set_function(lambda: snapshot().engine.batch_size or 0)
        self._step.set_function(lambda: snapshot().engine.step_time_s or 0.0)
        self._ready.set_function(lambda: snapshot().is_ready)
        self._restarts.set_function(lambda: snapshot().engine_restarts)
        self.registry.register(EngineGauges(self._model, lambda: snapshot().engine.extra))

    def canary(self, is_whole: bool, seconds: float) -> None:
        """One probe of the engine."""
        self._canary_seconds.observe(seconds)
        if not is_whole:
            self._canary_failures.inc()

    def call_started(self, method: str) -> None:
        children = self._call_children.get(method)
        if children is None:
            children = (self._started_calls.labels(method), self._call_seconds.labels(method))
            self._call_children[method] = children
        children[0].inc()

    def call_ended(self, method: str, code: str, reason: str, seconds: float) -> None:
        self._call_children[method][1].observe(seconds)
        child = self._handled_children.get((method, code))
        if child is None:
            child = self._handled_children[method, code] = self._calls.labels(method, code)
        child.inc()
        if reason:
            self._refusals.labels(reason).inc()

    def refused(self, caller: Caller, error: ServiceError) -> None:
        self._count_outcome(error)

    def started(self, generation: Generation, caller: Caller, queue_time_s: float) -> None:
        self._queue.observe(queue_time_s)
        self._prompt_tokens.inc(len(generation.prompt_token_ids))

    def first_token(self, generation: Generation, caller: Caller, since_arrival_s: float) -> None:
        self._ttft.observe(since_arrival_s)

    def tokens(self, generation: Generation, caller: Caller, count: int, gap_s: float | None) -> None:
        self._output_tokens.total += count
        if gap_s is not None:
            self._gap.observe(gap_s)

    def ended(
        self,
        generation: Generation,
        caller: Caller,
        outcome: Completed | ServiceError,
        total_s: float,
        decode_s: float | None,
    ) -> None:
        self._end_to_end.observe(total_s)
        if decode_s is not None:
            self._decode.observe(decode_s)
        if isinstance(outcome, Completed) and outcome.usage.cached_tokens:
            self._cached_tokens.inc(outcome.usage.cached_tokens)
        self._count_outcome(outcome)

    def _count_outcome(self, outcome: Completed | ServiceError) -> None:
        name = outcome_name(outcome)
        child = self._bound_outcomes.get(name)
        if child is None:
            child = self._bound_outcomes[name] = self._outcomes.labels(self._model, name)
        child.inc()


def outcome_name(outcome: Completed | ServiceError) -> str:
    """The outcome label: ok, cancelled, deadline, or the error's kind in snake case."""
    if isinstance(outcome, Completed):
        return "ok"
    if isinstance(outcome, CancelledByCaller):
        return "cancelled"
    if isinstance(outcome, (Expired, WouldExceed)):
        return "deadline"
    name = type(outcome).__name__
    return "".join("_" + c.lower() if c.isupper() else c for c in name).lstrip("_")
