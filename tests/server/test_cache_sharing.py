"""A prefix cache that cannot keep tenants apart serves one tenant, unless the operator lets them share."""

from __future__ import annotations

from dataclasses import replace

import pytest
from inferwire_server.domain.caller import Caller
from inferwire_server.domain.errors import CapabilityAbsent
from inferwire_server.engines.scripted import ScriptedEngine
from inferwire_server.scheduling.cache_sharing import SoleTenant

SALTED = ScriptedEngine().capabilities
UNSALTED = replace(SALTED, has_cache_salt=False)


def test_without_salts_a_second_tenant_is_refused_by_name() -> None:
    policy = SoleTenant()
    policy.check(Caller(tenant="a"), UNSALTED)
    policy.check(Caller(tenant="a"), UNSALTED)
    with pytest.raises(CapabilityAbsent, match="prefix_caching"):
        policy.check(Caller(tenant="b"), UNSALTED)


@pytest.mark.parametrize("capabilities", [SALTED, replace(UNSALTED, prefix_caching=False)])
def test_with_salts_or_without_a_cache_everybody_is_served(capabilities: object) -> None:
    policy = SoleTenant()
    policy.check(Caller(tenant="a"), capabilities)  # type: ignore[arg-type]
    policy.check(Caller(tenant="b"), capabilities)  # type: ignore[arg-type]
