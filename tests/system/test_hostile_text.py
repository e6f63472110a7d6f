"""Texts made to be expensive: each is answered or refused, health answers, and other callers' streams keep moving."""

from __future__ import annotations

import asyncio
import base64
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from inferwire.v1 import generation_pb2, inference_pb2_grpc
from inferwire_server.models.version import ModelVersion

from tests.gaps import Gaps, neighbours
from tests.real_model import NAME, real_model_folder
from tests.server_process import ServerProcess, server_process

HOSTILE = (
    "x" * 50_000,
    "a1" * 200_000,
    "\u0301" * 100_000,
    base64.b64encode(random.Random(4).randbytes(750_000)).decode(),
)
ENGINE = {"step_base_s": 0.02, "max_context_tokens": 131_072}
DEADLINE_S = 30.0
MOST_SLOWER = 5.0
ANSWERS = {grpc.StatusCode.OK, grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.RESOURCE_EXHAUSTED}


class Scene:
    """Callers of one server process."""

    def __init__(self, channel: grpc.aio.Channel, model: str) -> None:
        self.inference = inference_pb2_grpc.InferenceServiceStub(channel)
        self.health = health_pb2_grpc.HealthStub(channel)
        self.model = model
        self.outcomes: list[grpc.StatusCode] = []

    async def eight_at_once(self) -> None:
        """Each text as a prompt and as a chat, and health asked meanwhile."""
        calls = [self._call(text, as_chat) for text in HOSTILE for as_chat in (False, True)]
        gathered = asyncio.gather(*calls)
        while not gathered.done():
            answer = await self.health.Check(health_pb2.HealthCheckRequest(), timeout=DEADLINE_S)
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
            await asyncio.wait([gathered], timeout=0.05)
        self.outcomes += await gathered

    async def _call(self, text: str, as_chat: bool) -> grpc.StatusCode:
        message = generation_pb2.GenerateRequest(model=self.model, max_output_tokens=1)
        if as_chat:
            message.chat.messages.add(role="user", text=text)
        else:
            message.prompt = text
        call: Any = self.inference.Generate(message, timeout=DEADLINE_S)
        code: grpc.StatusCode = await call.code()
        return code


@asynccontextmanager
async def scene(server: ServerProcess, model: str) -> AsyncIterator[Scene]:
    """One channel for all of them."""
    async with grpc.aio.insecure_channel(server.address) as channel:
        yield Scene(channel, model)


async def slowdown(stage: Scene, *, output_tokens: int, phase_s: float) -> Gaps:
    """The neighbours' gaps; measured a second time when the first was too slow, for the machine may have been busy."""
    for attempt in range(2):
        async with Gaps().of(stage.inference, neighbours(stage.model, output_tokens)) as gaps:
            await gaps.compare(stage.eight_at_once, rounds=3, phase_s=phase_s)
        if gaps.ratio <= MOST_SLOWER or attempt:
            break
    return gaps


@pytest.mark.case("H12")
@pytest.mark.timeout(180)
async def test_hostile_texts_are_answered_while_streams_keep_moving() -> None:
    # A context that some of them fit into: these run, the others are refused.
    async with server_process(engine_options=ENGINE) as server, scene(server, "scripted") as s:
        gaps = await slowdown(s, output_tokens=4_000, phase_s=1.5)
    assert set(s.outcomes) == {grpc.StatusCode.OK, grpc.StatusCode.INVALID_ARGUMENT}
    assert gaps.ratio <= MOST_SLOWER, str(gaps)


@pytest.mark.real_model
@pytest.mark.timeout(400)
async def test_hostile_texts_leave_a_real_models_streams_moving(smollm2_q8_0: ModelVersion) -> None:
    settings: dict[str, Any] = {"model": NAME, "models_dir": real_model_folder(), "prefix_caching": "off"}
    async with server_process(engine="openvino", **settings) as server, scene(server, NAME) as s:
        gaps = await slowdown(s, output_tokens=600, phase_s=2.0)
    assert set(s.outcomes) <= ANSWERS
    assert gaps.ratio <= MOST_SLOWER, str(gaps)
