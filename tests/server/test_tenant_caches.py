"""Tenants share an engine and no cached prefix."""

from __future__ import annotations

from typing import Any

import grpc
import pytest
from inferwire_server.engines.scripted import ScriptedOptions

from tests.serving import Serving, bad_request, error_info, refusal, request, serving

PROMPT = "x" * 399
"""400 tokens with the beginning: 24 full blocks of 16 and one more token at least."""

pytestmark = pytest.mark.case("H15")


async def cached(server: Serving, tenant: str, **cache: Any) -> int:
    """Cached prompt tokens of one call of a tenant."""
    metadata = (("x-inferwire-tenant", tenant),) if tenant else ()
    message = request(PROMPT, cache=cache, max_output_tokens=2)
    usage = (await server.inference.Generate(message, metadata=metadata)).usage
    assert usage.HasField("cached_tokens")
    cached_tokens: int = usage.cached_tokens
    return cached_tokens


async def test_a_tenant_finds_its_own_prefix_and_no_other_s() -> None:
    async with serving() as server:
        counts = [await cached(server, tenant) for tenant in ("a", "a", "b", "a", "b")]
    assert [count >= 384 for count in counts] == [False, True, False, True, True]
    assert (counts[0], counts[2]) == (0, 0)


async def test_the_nameless_tenant_is_one_of_its_own() -> None:
    async with serving() as server:
        assert [await cached(server, tenant) for tenant in ("", "a", "anonymous")] == [0, 0, 384]


async def test_a_salt_divides_a_tenant_s_own_cache_further() -> None:
    async with serving() as server:
        counts = [await cached(server, "a", salt=salt) for salt in ("", "s", "", "s", "t")]
    assert [count >= 384 for count in counts] == [False, False, True, True, False]


@pytest.mark.parametrize("salt", ["1:a:", ":a:", "a", "a:", "1:a", "\0a", "a:s", "1:a:s"])
@pytest.mark.parametrize("stranger", ["b", "1", "aa"])
async def test_no_salt_leads_into_another_tenant_s_cache(salt: str, stranger: str) -> None:
    async with serving() as server:
        for own in ("", "s"):
            await cached(server, "a", salt=own)
        assert await cached(server, stranger, salt=salt) == 0


async def test_a_bypass_neither_reads_nor_fills_the_cache() -> None:
    async with serving() as server:
        assert [await cached(server, "a", bypass=True) for _ in range(2)] == [0, 0]
        assert await cached(server, "a") == 0
        assert await cached(server, "a", bypass=True) == 0
        assert await cached(server, "a") >= 384


@pytest.mark.parametrize("tenant", ["a b", "-a", "x" * 65, "a/b", "a:b"])
async def test_a_name_that_no_tenant_can_have_is_refused(tenant: str) -> None:
    async with serving() as server:
        error = await refusal(server.inference.Generate(request(), metadata=(("x-inferwire-tenant", tenant),)))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert error_info(error).metadata["field"] == "x-inferwire-tenant"
    assert bad_request(error).field_violations


async def test_without_prefix_caching_nothing_is_ever_cached() -> None:
    async with serving(ScriptedOptions(step_base_s=0.002, prefix_caching=False)) as server:
        assert [await cached(server, "a") for _ in range(2)] == [0, 0]
