"""Who may share a prefix cache that cannot keep tenants apart: nobody, unless the operator says so.

An engine without cache salts would let one tenant measure, by the time to first token, what another has asked. With
prefix caching on, such an engine serves the first tenant that calls and refuses any other by name.
"""

from __future__ import annotations

from inferwire_server.domain.caller import Caller
from inferwire_server.domain.engine import Capabilities
from inferwire_server.domain.errors import CapabilityAbsent


class SoleTenant:
    """The one tenant of an unsalted prefix cache."""

    def __init__(self) -> None:
        self._tenant: str | None = None

    def check(self, caller: Caller, capabilities: Capabilities) -> None:
        """Raise CapabilityAbsent for a second tenant."""
        if not capabilities.prefix_caching or capabilities.has_cache_salt:
            return
        if self._tenant is None:
            self._tenant = caller.tenant
        elif caller.tenant != self._tenant:
            raise CapabilityAbsent(
                "x-inferwire-tenant",
                "this engine’s prefix cache cannot keep tenants apart; serve with prefix_caching=off, or =shared "
                "to let them share it",
            )
