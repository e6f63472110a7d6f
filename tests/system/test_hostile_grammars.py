"""Grammars made to be costly or wrong: each is refused or obeyed, and streams without one hardly notice."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from inferwire.v1 import generation_pb2, inference_pb2_grpc, operations_pb2, operations_pb2_grpc
from inferwire_server.models.repository import ModelRepository

from tests.gaps import Gaps, neighbours
from tests.grammars import HOSTILE, Constraint, generated
from tests.real_model import NAME
from tests.server_process import ServerProcess, server_process
from tests.serving import error_info, request

DEADLINE_S = 300.0
"""Only against hanging: checks of hostile grammars wait for one another."""
AT_ONCE = 4
MOST_SLOWER = 3.0
SEED = 3
STEP_S = 0.02
"""Of the scripted engine, which follows grammars in Python: a few milliseconds a step go to that."""


class Trials:
    """Tries constraints on one server, a few at a time, and keeps what became of each."""

    def __init__(self, channel: grpc.aio.Channel, model: str, constraints: list[Constraint]) -> None:
        self.inference = inference_pb2_grpc.InferenceServiceStub(channel)
        self._operations = operations_pb2_grpc.OperationsServiceStub(channel)
        self._model = model
        self._waiting: Iterator[Constraint] = iter(constraints)
        self.untried = len(constraints)
        self.outputs: list[tuple[Constraint, generation_pb2.Output]] = []
        self.refused: list[tuple[Constraint, grpc.aio.AioRpcError]] = []

    async def some(self) -> None:
        """Try the next few together."""
        batch = list(itertools.islice(self._waiting, AT_ONCE))
        await asyncio.gather(*map(self._try, batch), asyncio.sleep(0.01))

    async def restarts(self) -> int:
        """How often the engine had to be replaced."""
        status = await self._operations.GetServerStatus(operations_pb2.GetServerStatusRequest())
        return status.engine_restarts

    async def _try(self, constraint: Constraint) -> None:
        message = request(
            "Answer:",
            model=self._model,
            structured_output=constraint.message,
            max_output_tokens=32,
            sampling={"temperature": 1.0, "seed": self.untried},
        )
        self.untried -= 1
        try:
            answer = await self.inference.Generate(message, timeout=DEADLINE_S)
        except grpc.aio.AioRpcError as error:
            self.refused.append((constraint, error))
        else:
            self.outputs.append((constraint, answer.outputs[0]))


@asynccontextmanager
async def trials(server: ServerProcess, model: str, constraints: list[Constraint]) -> AsyncIterator[Trials]:
    """Over one channel."""
    async with grpc.aio.insecure_channel(server.address) as channel:
        yield Trials(channel, model, constraints)


async def slowdown(under_trial: Trials, model: str, *, output_tokens: int, phase_s: float) -> Gaps:
    """The gaps of plain streams beside all of the trials."""
    gaps = Gaps()
    async with gaps.of(under_trial.inference, neighbours(model, output_tokens)):
        while under_trial.untried:
            await gaps.compare(under_trial.some, rounds=1, phase_s=phase_s)
    return gaps


def check_refusals(refused: list[tuple[Constraint, grpc.aio.AioRpcError]]) -> None:
    """Each names its field."""
    for constraint, error in refused:
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT, (constraint.source[:80], error.details())
        assert error_info(error).metadata["field"] == f"structured_output.{constraint.format}"


def check_outputs(outputs: list[tuple[Constraint, generation_pb2.Output]]) -> None:
    """What is complete obeys; what was cut off could have gone on to."""
    for constraint, output in outputs:
        is_whole = output.finished.reason == generation_pb2.FINISH_REASON_STOP
        assert constraint.holds(output.text) if is_whole else constraint.begins(output.text), (constraint, output.text)


async def prove(server: ServerProcess, model: str, count: int, **phases: Any) -> None:
    """Hostile and generated constraints beside plain streams, measured once more where a first time was too slow."""
    for attempt in range(2):
        accepted = generated(SEED, count)
        async with trials(server, model, [*HOSTILE, *accepted]) as under_trial:
            gaps = await slowdown(under_trial, model, **phases)
            assert await under_trial.restarts() == 0
        check_refusals(under_trial.refused)
        check_outputs([(c, output) for c, output in under_trial.outputs if c in accepted])
        assert all(c.begins(output.text) for c, output in under_trial.outputs)
        assert not [c for c, _ in under_trial.refused if c in accepted], "what is sensible was refused"
        if gaps.ratio <= MOST_SLOWER or attempt:
            break
    assert gaps.ratio <= MOST_SLOWER, str(gaps)


@pytest.mark.timeout(180)
async def test_hostile_grammars_are_refused_or_obeyed_while_plain_streams_keep_moving() -> None:
    async with server_process(engine_options={"step_base_s": STEP_S}) as server:
        await prove(server, "scripted", 16, output_tokens=4_000, phase_s=2.0)


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_200_grammars_are_obeyed_while_plain_streams_keep_moving() -> None:
    async with server_process(engine_options={"step_base_s": STEP_S}) as server:
        await prove(server, "scripted", 200, output_tokens=4_000, phase_s=1.0)


@pytest.mark.slow
@pytest.mark.real_model
@pytest.mark.timeout(1200)
async def test_200_grammars_are_obeyed_by_a_real_model_too(smollm2_repository: ModelRepository) -> None:
    async with server_process(engine="openvino", model=NAME, models_dir=smollm2_repository.root) as server:
        await prove(server, NAME, 200, output_tokens=600, phase_s=1.0)
