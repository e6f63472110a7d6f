"""Who is asking. Every domain call carries a caller, so that isolation and accounting never depend on a transport."""

from __future__ import annotations

from dataclasses import dataclass

ANONYMOUS_TENANT = "anonymous"


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """An authenticated (or, on loopback, anonymous) caller."""

    tenant: str = ANONYMOUS_TENANT
    """The unit of sharing and isolation: queues, quotas, caches and sessions are scoped by it."""
    subject: str = ""
    """Who inside the tenant, for the audit record; empty when unknown."""
    roles: frozenset[str] = frozenset()
    """Names that the authorisation table maps to permitted calls."""


ANONYMOUS = Caller()
