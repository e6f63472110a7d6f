"""Who a caller is. Until identities are configured, the tenant is believed from metadata, on loopback only."""

from __future__ import annotations

import re
from collections.abc import Mapping

from inferwire_server.domain.caller import ANONYMOUS, Caller
from inferwire_server.domain.errors import InvalidRequest

TENANT_KEY = "x-inferwire-tenant"
_TENANT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def caller_from_metadata(metadata: Mapping[str, str | bytes], *, is_loopback: bool) -> Caller:
    """The caller named by metadata. Raises InvalidRequest for a name that cannot be one."""
    tenant = metadata.get(TENANT_KEY)
    if tenant is None or not is_loopback:
        return ANONYMOUS
    if not isinstance(tenant, str) or not _TENANT.fullmatch(tenant):
        raise InvalidRequest(TENANT_KEY, "must be 1 to 64 letters, digits and ._- and begin with a letter or digit")
    return Caller(tenant=tenant)
