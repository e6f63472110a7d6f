"""The tenant is the credential's, whatever a call says: caches, request ids, quotas and everybody's work follow it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from inferwire.v1 import generation_pb2, inference_pb2_grpc, operations_pb2, operations_pb2_grpc

from tests.secured import Deployment, Metadata, bearer, secured
from tests.server.security.audit_reading import records
from tests.serving import error_info, refusal, request, rest_of

FRESH, REPLAYED = generation_pb2.CONTINUATION_UNSPECIFIED, generation_pb2.CONTINUATION_REPLAYED
LONG = "x" * 399
"""400 tokens with the beginning: 24 full blocks of 16 and one more token at least."""


class Tenants:
    """Callers of two tenants, and an operator of a third, on one connection."""

    def __init__(self, keys: Sequence[str], channel: grpc.aio.Channel) -> None:
        self.a, self.b, self.operator = map(bearer, keys)
        self.inference = inference_pb2_grpc.InferenceServiceStub(channel)
        self.operations = operations_pb2_grpc.OperationsServiceStub(channel)

    async def cached(self, caller: Metadata, *more: tuple[str, str], **fields: Any) -> int:
        message = request(LONG, max_output_tokens=1, **fields)
        answer = await self.inference.Generate(message, metadata=(*caller, *more))
        return int(answer.usage.cached_tokens)

    async def listed(self) -> set[tuple[str, str]]:
        answer = await self.operations.ListGenerations(operations_pb2.ListGenerationsRequest(), metadata=self.operator)
        return {(each.tenant, each.request_id) for each in answer.generations}

    def cancel(self, caller: Metadata, tenant: str) -> Any:
        message = operations_pb2.CancelGenerationRequest(request_id="job", tenant=tenant)
        return self.operations.CancelGeneration(message, metadata=caller)


@asynccontextmanager
async def tenants(folder: Path, **settings: Any) -> AsyncIterator[Tenants]:
    deployment = Deployment(folder)
    keys = [deployment.key("user", tenant=name) for name in "ab"] + [deployment.key("operator", tenant="platform")]
    async with secured(deployment, **settings) as server, deployment.channel(server) as channel:
        yield Tenants(keys, channel)


@pytest.mark.case("H15")
async def test_tenants_share_no_cached_prefix_and_nothing_in_a_call_chooses_another_one_s(tmp_path: Path) -> None:
    async with tenants(tmp_path) as each:
        counts = [await each.cached(caller) for caller in (each.a, each.a, each.b, each.a)]
        assert [count >= 384 for count in counts] == [False, True, False, True]
        assert (counts[0], counts[2]) == (0, 0)
    async with tenants(tmp_path) as each:
        assert await each.cached(each.a) == 0
        assert await each.cached(each.b, ("x-inferwire-tenant", "a")) == 0
        assert await each.cached(each.b, cache={"salt": "1:a:"}) == 0
        assert await each.cached(each.a) >= 384


async def test_a_request_id_is_each_tenant_s_own(tmp_path: Path) -> None:
    async with tenants(tmp_path) as each:
        message = request(request_id="job", output={"token_ids": True})
        first = await each.inference.Generate(message, metadata=each.a)
        message.attempt = 7
        second = await each.inference.Generate(message, metadata=each.b)
        message.attempt = 0
        again = await each.inference.Generate(message, metadata=each.a)
        assert [answer.started.continuation for answer in (first, second, again)] == [FRESH, FRESH, REPLAYED]
        other = request("something else", request_id="job")
        assert error_info(await refusal(each.inference.Generate(other, metadata=each.a))).reason == "KEY_CONFLICT"


async def test_nobody_joins_takes_over_or_ends_what_another_tenant_runs(tmp_path: Path) -> None:
    async with tenants(tmp_path) as each:
        message = request(request_id="job", max_output_tokens=4000, output={"token_ids": True})
        stream: Any = each.inference.StreamGenerate(message, metadata=each.a)
        started = (await stream.read()).started
        held = [*(await stream.read()).delta.token_ids]
        message.attempt = 9
        message.resume.prompt_digest = started.prompt_digest
        message.resume.outputs.add(token_ids=held)
        stranger: Any = each.inference.StreamGenerate(message, metadata=each.b)
        continuation = (await stranger.read()).started.continuation
        assert continuation not in (generation_pb2.CONTINUATION_ATTACHED, REPLAYED)
        assert await each.listed() == {("a", "job"), ("b", "job")}
        for tenant in "ab":
            assert error_info(await refusal(each.cancel(each.b, tenant))).reason == "FORBIDDEN"
        await each.cancel(each.operator, "b")
        assert error_info(await refusal(rest_of(stranger))).reason == "CANCELLED_BY_OPERATOR"
        assert (await stream.read()).delta.token_count
        stream.cancel()


async def test_users_see_no_work_and_no_load_of_anybody(tmp_path: Path) -> None:
    async with tenants(tmp_path) as each:
        calls: tuple[Any, ...] = (
            each.operations.ListGenerations(operations_pb2.ListGenerationsRequest(), metadata=each.a),
            each.operations.GetServerStatus(operations_pb2.GetServerStatusRequest(), metadata=each.a),
            each.operations.WatchLoad(operations_pb2.WatchLoadRequest(), metadata=each.a),
        )
        assert {error_info(await refusal(call)).reason for call in calls} == {"FORBIDDEN"}


async def test_quotas_and_records_follow_the_credential(tmp_path: Path) -> None:
    file = tmp_path / "tenants.toml"
    file.write_text("[tenants.a]\nrequests_per_minute = 1")
    async with tenants(tmp_path, tenants=file, audit_dir=tmp_path / "audit") as each:
        claims_b = (*each.a, ("x-inferwire-tenant", "b"))
        await each.inference.Generate(request(), metadata=claims_b)
        assert error_info(await refusal(each.inference.Generate(request(), metadata=claims_b))).reason == "QUOTA"
        await each.inference.Generate(request(), metadata=(*each.b, ("x-inferwire-tenant", "a")))
    found = [(record["tenant"], record["code"]) for record in records(tmp_path / "audit")]
    assert found == [("a", "OK"), ("a", "RESOURCE_EXHAUSTED"), ("b", "OK")]
    assert all(record["subject"] and record["roles"] == ["user"] for record in records(tmp_path / "audit"))
