"""What certificates, keys and their renewal look like from outside. Absent until there is something to say."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge


class SecurityMetrics:
    """Declared in a registry; safe to use from any thread."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._expiry = Gauge(
            "inferwire_tls_certificate_expiry_timestamp_seconds",
            "When a certificate in use ends: of the server, or the first of the clients' CAs.",
            ("certificate",),
            registry=registry,
        )
        self._failures = Counter(
            "inferwire_security_reload_failures",
            "Changed certificates or keys that could not be used, so that the old ones stay.",
            ("kind",),
            registry=registry,
        )

    def certificate_expires(self, certificate: str, at: float) -> None:
        """`certificate` is `server` or `client_ca`; seconds since the epoch."""
        self._expiry.labels(certificate).set(at)

    def reload_failed(self, kind: str) -> None:
        """`kind` is `certificate`, `api_keys`, `jwks` or `tenants`."""
        self._failures.labels(kind).inc()
