"""Prometheus metrics of a client: `pip install inferwire[metrics]`, then `observer=PrometheusObserver()`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from inferwire.observation import AttemptEnded, BreakerChanged, CallEnded, Observer

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

_SECONDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
_HEDGE_OUTCOMES = {"OK": "won", "CANCELLED": "lost"}
_BREAKER_STATES = ("closed", "half-open", "open")


class PrometheusObserver(Observer):
    """Counts what a client does, as `inferwire_client_…`. One observer may serve several clients."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        """`registry`: prometheus_client's default one unless given. Raises ImportError without prometheus_client."""
        try:
            from prometheus_client import REGISTRY, Counter, Gauge, Histogram
        except ImportError:
            raise ImportError("client metrics need prometheus_client: pip install 'inferwire[metrics]'") from None
        into = registry if registry is not None else REGISTRY
        self._attempts = Counter(
            "inferwire_client_attempts",
            "Attempts sent to endpoints.",
            ("method", "region", "endpoint", "code", "reason"),
            registry=into,
        )
        self._attempt_seconds = Histogram(
            "inferwire_client_attempt_seconds",
            "Time from sending an attempt to its end.",
            ("method", "region"),
            buckets=_SECONDS,
            registry=into,
        )
        self._first_token_seconds = Histogram(
            "inferwire_client_first_token_seconds",
            "Time from sending an attempt to its first token.",
            ("region",),
            buckets=_SECONDS,
            registry=into,
        )
        self._calls = Counter(
            "inferwire_client_calls", "Calls as callers saw them.", ("method", "code", "reason"), registry=into
        )
        self._call_seconds = Histogram(
            "inferwire_client_call_seconds", "Time of whole calls.", ("method",), buckets=_SECONDS, registry=into
        )
        self._hedges = Counter(
            "inferwire_client_hedges",
            "Second attempts beside slow first ones: won, lost to the first, or failed.",
            ("region", "outcome"),
            registry=into,
        )
        self._resumes = Counter("inferwire_client_resumes", "Streams that went on elsewhere.", registry=into)
        self._resume_gap_seconds = Histogram(
            "inferwire_client_resume_gap_seconds",
            "Longest time in a resumed stream from its loss to its next token.",
            buckets=_SECONDS,
            registry=into,
        )
        self._breakers = Gauge(
            "inferwire_client_breaker_state",
            "1 for the present state of an endpoint's breaker; absent until it first opens.",
            ("region", "endpoint", "state"),
            registry=into,
        )

    def attempt_ended(self, attempt: AttemptEnded) -> None:
        """Count it."""
        method = _name(attempt.method)
        self._attempts.labels(method, attempt.region, attempt.endpoint, attempt.code, attempt.reason).inc()
        self._attempt_seconds.labels(method, attempt.region).observe(attempt.duration_s)
        if attempt.is_hedge:
            self._hedges.labels(attempt.region, _HEDGE_OUTCOMES.get(attempt.code, "failed")).inc()
        if attempt.first_token_s is not None:
            self._first_token_seconds.labels(attempt.region).observe(attempt.first_token_s)

    def call_ended(self, call: CallEnded) -> None:
        """Count it."""
        method = _name(call.method)
        self._calls.labels(method, call.code, call.reason).inc()
        self._call_seconds.labels(method).observe(call.duration_s)
        if call.resumed_at:
            self._resumes.inc(len(call.resumed_at))
            self._resume_gap_seconds.observe(call.longest_resume_s)

    def breaker_changed(self, change: BreakerChanged) -> None:
        """Show the new state."""
        for state in _BREAKER_STATES:
            self._breakers.labels(change.region, change.endpoint, state).set(state == change.state)


def _name(path: str) -> str:
    return path.rpartition("/")[2]
