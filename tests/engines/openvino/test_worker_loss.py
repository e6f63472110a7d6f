"""A worker that dies or falls silent is replaced; what ran in it ends at once, and what comes next is right."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import AsyncIterator

import psutil
import pytest
import pytest_asyncio
from inferwire_server.domain.engine import Cancelled, EngineEvent, EngineState
from inferwire_server.domain.errors import EngineDown
from inferwire_server.domain.generation import Grammar, GrammarKind
from inferwire_server.engines.openvino.engine import OpenVinoEngine
from inferwire_server.engines.openvino.options import Profile
from inferwire_server.models.version import ModelVersion

from tests.engines.event_recorder import EventRecorder
from tests.engines.openvino.byte_model import MAX_CONTEXT_TOKENS, tokens
from tests.engines.openvino.conftest import ReferenceRow
from tests.engines.openvino.engines import byte_model_options, model_options, running
from tests.engines.openvino.requests import BOUND_S, a_request, run, submitted, until
from tests.engines.openvino.table_model import Table, write_table_model

TABLE: Table = {last: {following: 5.0} for last, following in zip(tokens("abcd"), tokens("bcda"), strict=True)}
STREAMS = 8
NOTICE_S = 3.0
"""A dead process is noticed within a second where nothing else runs; a busy machine gets three."""

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[OpenVinoEngine]:
    path = write_table_model(tmp_path_factory.mktemp("table") / "abcd.gguf", TABLE)
    async with running(byte_model_options(path, kv_blocks=STREAMS * 130)) as engine:
        yield engine


async def begin_streams(engine: OpenVinoEngine) -> list[EventRecorder]:
    """Eight streams that have begun and will not end soon."""
    recorders = [submitted(engine, a_request(tokens("a"), MAX_CONTEXT_TOKENS - 8))[1] for _ in range(STREAMS)]
    for recorder in recorders:
        await recorder.until_tokens(1, BOUND_S)
    return recorders


def worker_of(engine: OpenVinoEngine) -> int:
    assert engine.worker_pid is not None
    return engine.worker_pid


async def test_a_killed_worker_ends_its_streams_at_once(engine: OpenVinoEngine) -> None:
    recorders = await begin_streams(engine)
    lost = worker_of(engine)

    killed_at = time.monotonic()
    os.kill(lost, signal.SIGKILL)
    for recorder in recorders:
        await recorder.until_ended(BOUND_S)

    assert time.monotonic() - killed_at < NOTICE_S
    await assert_lost_and_recovered(engine, recorders, lost)


async def test_a_stopped_worker_ends_its_streams_soon_after_the_silence_bound(engine: OpenVinoEngine) -> None:
    recorders = await begin_streams(engine)
    lost, bound_s = worker_of(engine), engine.silence_bound_s
    assert bound_s is not None

    stopped_at = time.monotonic()
    os.kill(lost, signal.SIGSTOP)
    for recorder in recorders:
        await recorder.until_ended(BOUND_S)

    assert time.monotonic() - stopped_at < bound_s + NOTICE_S
    await assert_lost_and_recovered(engine, recorders, lost)


async def assert_lost_and_recovered(engine: OpenVinoEngine, recorders: list[EventRecorder], lost: int) -> None:
    assert all(isinstance(recorder.failure, EngineDown) and recorder.failure.started for recorder in recorders)
    assert engine.health().state is EngineState.DEAD
    assert "worker" in engine.health().reason
    with pytest.raises(EngineDown) as refused:
        submitted(engine, a_request(tokens("a")))
    assert refused.value.retry_after_s
    assert not refused.value.started
    restarts = engine.health().restarts

    await until(lambda: engine.health().state is EngineState.READY)

    assert engine.health().restarts == restarts + 1
    assert not psutil.pid_exists(lost)
    assert engine.load().kv_blocks_reserved == 0
    assert (await run(engine, a_request(tokens("a"), 6))).token_ids == tokens("bcdabc")


async def test_a_cancelled_stream_ends_at_once_though_the_worker_is_stuck(engine: OpenVinoEngine) -> None:
    stream, recorder = submitted(engine, a_request(tokens("a"), 500))
    os.kill(worker_of(engine), signal.SIGSTOP)

    stream.cancel()
    await recorder.until_ended(BOUND_S)

    assert isinstance(recorder.terminal, Cancelled)
    assert engine.load().running == 1, "the slot was given back before the worker let go"
    os.kill(worker_of(engine), signal.SIGCONT)
    await until(lambda: engine.load().running == 0)
    assert engine.health().state is EngineState.READY


async def test_a_step_that_throws_costs_one_worker(engine: OpenVinoEngine) -> None:
    lost = worker_of(engine)
    unchecked = Grammar(kind=GrammarKind.JSON_SCHEMA, source='{"type": 12}')

    neighbour = submitted(engine, a_request(tokens("a"), 2000))[1]
    broken = await run(engine, a_request(tokens("a"), grammar=unchecked))
    await neighbour.until_ended(BOUND_S)

    assert "step failed" in engine.health().reason
    await assert_lost_and_recovered(engine, [broken, neighbour], lost)


async def test_a_worker_that_dies_while_it_loads_is_replaced_too(engine: OpenVinoEngine) -> None:
    restarts, first = engine.health().restarts, worker_of(engine)
    os.kill(first, signal.SIGKILL)
    await until(lambda: engine.worker_pid not in {first, None})
    os.kill(worker_of(engine), signal.SIGKILL)

    await until(lambda: engine.health().state is EngineState.READY)

    assert engine.health().restarts == restarts + 2


async def test_a_sink_that_raises_harms_nobody_else(engine: OpenVinoEngine, caplog: pytest.LogCaptureFixture) -> None:
    def broken_sink(event: EngineEvent) -> None:
        raise RuntimeError("not my day")

    engine.submit(a_request(tokens("a"), 4), broken_sink)
    recorder = await run(engine, a_request(tokens("a"), 6))

    assert recorder.token_ids == tokens("bcdabc")
    assert "a sink failed" in caplog.text


async def test_health_changes_are_announced(engine: OpenVinoEngine) -> None:
    states: list[EngineState] = []
    engine.subscribe(lambda: states.append(engine.health().state))

    os.kill(worker_of(engine), signal.SIGKILL)
    await until(lambda: EngineState.READY in states)

    assert states[0] is EngineState.DEAD
    assert states[-1] is EngineState.READY


@pytest.mark.real_model
@pytest.mark.timeout(180)
async def test_the_real_model_comes_back_and_is_right(
    smollm2_f16: ModelVersion, reference_rows: list[ReferenceRow]
) -> None:
    requests = [a_request(row.prompt, 16, ignore_end_of_sequence=True) for row in reference_rows]
    async with running(model_options(smollm2_f16, Profile.EXACT, kv_blocks=100)) as engine:
        recorders = [submitted(engine, request)[1] for request in requests]
        await recorders[0].until_tokens(2, BOUND_S)
        os.kill(worker_of(engine), signal.SIGKILL)
        for recorder in recorders:
            await recorder.until_ended(BOUND_S)
        await until(lambda: engine.health().state is EngineState.READY)
        again = await run(engine, requests[0])

    assert all(isinstance(recorder.failure, EngineDown) for recorder in recorders)
    assert again.token_ids == reference_rows[0].continuation[:16]
