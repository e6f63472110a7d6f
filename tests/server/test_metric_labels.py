"""Labels come from closed sets: whatever callers send, the page has no new series and no name of theirs."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest
from inferwire_server.engines.scripted import ScriptedOptions
from prometheus_client import generate_latest

from tests.polling import until
from tests.server.metrics_pages import samples, series
from tests.serving import Serving, refusal, request, serving

HOSTILE = ['x"} 1\n# HELP', "a" * 60, "évil\n", "{{.Values}}", "${jndi:ldap://x}", "../../etc/passwd", "\x00\x01"]
METHOD = {"grpc_type": "server_stream", "grpc_service": "inferwire.v1.InferenceService"}


def page(server: Serving) -> str:
    return generate_latest(server.server.metrics.registry).decode()


async def send(server: Serving, name: str) -> None:
    """A call with the name wherever a caller can put one."""
    await refusal(server.inference.Generate(request(model=name.encode("ascii", "ignore").decode())))
    printable = "".join(c for c in name if " " <= c <= "~")
    metadata = (("x-inferwire-tenant", printable), ("x-evil", printable), ("traceparent", printable))
    call: Any = server.inference.Generate(request(request_id=printable[:60]), metadata=metadata)
    await asyncio.wait([asyncio.ensure_future(call.code())])
    path = "/" + (printable.replace("/", "") or "Evil") + "/Method"
    unknown: Any = server.channel.unary_unary(path, request_serializer=bytes, response_deserializer=bytes)
    assert (await refusal(unknown(b""))).code() is grpc.StatusCode.UNIMPLEMENTED


async def test_hostile_names_never_become_labels() -> None:
    async with serving(metrics_tenants=["acme"]) as server:
        await server.inference.Generate(request())
        await refusal(server.inference.Generate(request(model="nobody")))
        before = page(server)
        for name in [*HOSTILE, *(f"tenant-{number}" for number in range(12))]:
            await send(server, name)
        await until(lambda: server.calls_under_way == 0)
        after = page(server)
    assert series(samples(after)) == series(samples(before))
    for name in ("evil", "jndi", "passwd", "Values", "tenant-7", "aaaa"):
        assert name not in after


async def test_a_fresh_page_has_every_outcome_and_reason_at_zero() -> None:
    async with serving() as server:
        found = samples(page(server))
    outcomes = {s.labels["outcome"]: s.value for s in found if s.name == "inferwire_generations_total"}
    reasons = {s.labels["reason"]: s.value for s in found if s.name == "inferwire_refusals_total"}
    assert {"ok", "cancelled", "deadline", "overloaded", "internal_error", "reader_stalled"} <= outcomes.keys()
    assert {"OVERLOADED", "QUOTA", "DRAINING", "ENGINE_DOWN", "INTERNAL", "READER_STALLED"} <= reasons.keys()
    assert {*outcomes.values(), *reasons.values()} == {0.0}


async def test_only_listed_tenants_have_a_name() -> None:
    async with serving(metrics_tenants=["acme"]) as server:
        for tenant, count in (("acme", 2), ("globex", 1), ("other", 1)):
            for _ in range(count):
                await server.inference.Generate(request(), metadata=(("x-inferwire-tenant", tenant),))
        await refusal(server.inference.Generate(request(model="x"), metadata=(("x-inferwire-tenant", "acme"),)))
        found = samples(page(server))

    def of(name: str, **labels: str) -> dict[str, float]:
        chosen = [s for s in found if s.name == name and labels.items() <= s.labels.items()]
        return {s.labels["tenant"]: s.value for s in chosen}

    assert of("inferwire_tenant_generations_total", outcome="ok") == {"acme": 2, "other": 2}
    assert of("inferwire_tenant_generations_total", outcome="model_not_found") == {"acme": 1, "other": 0}
    assert of("inferwire_tenant_tokens_total", kind="output") == {"acme": 32, "other": 32}
    assert of("inferwire_tenant_time_to_first_token_seconds_count") == {"acme": 2, "other": 2}
    assert of("inferwire_tenant_running_generations") == {"acme": 0, "other": 0}


async def test_running_and_waiting_are_counted_by_tenant() -> None:
    async with serving(ScriptedOptions(step_base_s=0.005, max_running=1), metrics_tenants=["acme"]) as server:
        tenants = ("acme", "globex", "initech")
        streams = [
            server.inference.StreamGenerate(request(max_output_tokens=4000), metadata=(("x-inferwire-tenant", tenant),))
            for tenant in tenants
        ]
        await until(lambda: server.sample("inferwire_waiting_generations") == 2)
        labels = [{"model": "scripted@1", "tenant": tenant} for tenant in ("acme", "other")]
        waiting = [server.sample("inferwire_tenant_waiting_generations", **each) for each in labels]
        running = [server.sample("inferwire_tenant_running_generations", **each) for each in labels]
        for stream in streams:
            stream.cancel()
    assert (sum(waiting), sum(running)) == (2, 1)
    assert waiting[0] + running[0] == 1


@pytest.mark.parametrize(("priority", "name"), [(1, "interactive"), (2, "standard"), (3, "batch")])
async def test_times_are_kept_by_priority(priority: int, name: str) -> None:
    async with serving() as server:
        await server.inference.Generate(request(scheduling={"priority": priority}))
        for metric in ("time_to_first_token", "queue", "request"):
            labels = {"model": "scripted@1", "priority": name}
            assert server.sample(f"inferwire_{metric}_seconds_count", **labels) == 1


async def test_messages_are_counted_both_ways() -> None:
    async with serving() as server:
        sent = [event async for event in server.inference.StreamGenerate(request())]
        await until(lambda: server.calls_under_way == 0)
        labels = METHOD | {"grpc_method": "StreamGenerate"}
        assert server.sample("grpc_server_msg_sent_total", **labels) == len(sent)
        assert server.sample("grpc_server_msg_received_total", **labels) == 1
        assert server.sample("grpc_server_handling_seconds_count", **labels) == 1


async def test_tokens_of_what_did_not_end_well_are_wasted() -> None:
    async with serving() as server:
        await server.inference.Generate(request())
        assert server.sample("inferwire_wasted_tokens_total") == 0
        stream = server.inference.StreamGenerate(request(max_output_tokens=4000))
        deltas = 0
        while deltas < 5:
            event: Any = await stream.read()
            deltas += event.HasField("delta")
        stream.cancel()
        await until(lambda: server.is_quiet)
        output = server.sample("inferwire_output_tokens_total")
        assert server.sample("inferwire_wasted_tokens_total") == output - 16 >= 5
