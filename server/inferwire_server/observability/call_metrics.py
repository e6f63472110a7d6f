"""RPCs, under the names that gRPC's Prometheus interceptors have given them in other languages."""

from __future__ import annotations

from collections.abc import Iterable

from inferwire_server.observability.buckets import CALL_BUCKETS
from inferwire_server.observability.tallies import CounterTally, HistogramTally, TallyCollector

_METHOD = ("grpc_type", "grpc_service", "grpc_method")


class MethodMetrics:
    """One method's, bound when its handler is wrapped."""

    def __init__(
        self,
        *,
        started: CounterTally,
        received: CounterTally,
        sent: CounterTally,
        seconds: HistogramTally,
        handled: dict[str, CounterTally],
        refusals: dict[str, CounterTally],
    ) -> None:
        self._started = started
        self._received = received
        self._sent = sent
        self._seconds = seconds
        self._handled = handled
        self._refusals = refusals

    def started(self) -> None:
        """A call has come."""
        self._started.total += 1

    def received(self) -> None:
        """A message of the caller's has come."""
        self._received.total += 1

    def sent(self) -> None:
        """A message is on its way to the caller."""
        self._sent.total += 1

    def ended(self, code: str, reason: str, seconds: float) -> None:
        """A call has ended, with a gRPC code and, unless it is OK or has none, a reason of the contract."""
        self._handled[code].total += 1
        self._seconds.observe(seconds)
        if reason:
            self._refusals[reason].total += 1


class CallMetrics:
    """Observes calls."""

    def __init__(self, tallies: TallyCollector, codes: Iterable[str], reasons: Iterable[str]) -> None:
        """`codes` of gRPC and `reasons` of the contract are all that ever become labels."""
        self._codes = tuple(codes)
        self._started = tallies.counters("grpc_server_started", "Calls that came.", _METHOD)
        self._received = tallies.counters("grpc_server_msg_received", "Messages from callers.", _METHOD)
        self._sent = tallies.counters("grpc_server_msg_sent", "Messages to callers.", _METHOD)
        self._seconds = tallies.histograms("grpc_server_handling_seconds", "Duration of calls.", _METHOD, CALL_BUCKETS)
        self._handled = tallies.counters("grpc_server_handled", "Calls that ended.", (*_METHOD, "grpc_code"))
        refusals = tallies.counters("inferwire_refusals", "Refused or failed calls by reason.", ("reason",))
        self._refusals = {reason: refusals.labels(reason) for reason in reasons}

    def method(self, path: str, kind: str) -> MethodMetrics:
        """For one method of this server, as in `/inferwire.v1.InferenceService/Generate`; `kind` as in `unary`."""
        service, _, method = path.strip("/").partition("/")
        labels = (kind, service, method)
        return MethodMetrics(
            started=self._started.labels(*labels),
            received=self._received.labels(*labels),
            sent=self._sent.labels(*labels),
            seconds=self._seconds.labels(*labels),
            handled={code: self._handled.labels(*labels, code) for code in self._codes},
            refusals=self._refusals,
        )
