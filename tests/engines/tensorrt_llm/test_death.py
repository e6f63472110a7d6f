"""The engine dies in each of its ways under sixteen streams: every stream ends in time, and so does the process."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from inferwire_server.domain.engine import EngineState
from inferwire_server.domain.errors import EngineDown, Starting
from inferwire_server.engines.tensorrt_llm.engine import TensorRTEngine
from inferwire_server.engines.tensorrt_llm.options import Options
from inferwire_server.engines.tensorrt_llm.watchdog import EXIT_CODE

from tests.engines.event_recorder import EventRecorder
from tests.engines.tensorrt_llm.running_engine import BOUND_S, Exits, request, running_engine, until
from tests.engines.tensorrt_llm.toy_checkpoint import toy_checkpoint, unkind_checkpoint

pytestmark = pytest.mark.usefixtures("standin")

SOON = Options(exit_s=1.0, teardown_s=1.0)
FAULTS: dict[str, tuple[dict[str, int], Options, str]] = {
    "dead worker": ({"worker_dies_at_step": 20}, SOON, "a worker process has ended"),
    "silent worker": ({"worker_silent_at_step": 20}, replace(SOON, silence_s=1.0), "no step for"),
    "fatal error that blocks its loop": ({"fatal_at_step": 20}, SOON, "it has begun to shut itself down"),
    "loop blocked without a word": (
        {"reader_stuck_at_step": 20},
        replace(SOON, loop_stuck_s=1.0),
        "its event loop has not answered for",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_every_stream_ends_and_the_process_with_it(fault: str, tmp_path: Path) -> None:
    temperament, options, reason = FAULTS[fault]
    exits = Exits()
    checkpoint = unkind_checkpoint(tmp_path, step_s=0.002, **temperament)
    async with running_engine(checkpoint, options, exits=exits) as engine:
        recorders = [EventRecorder() for _ in range(16)]
        for number, recorder in enumerate(recorders):
            engine.submit(request((201 + number,), max_output_tokens=400), recorder)
        for recorder in recorders:
            await recorder.until_ended(BOUND_S)

        assert {type(recorder.failure) for recorder in recorders} == {EngineDown}
        assert all(recorder.token_ids for recorder in recorders)
        health = engine.health()
        assert health.state is EngineState.DEAD
        assert health.reason.partition(": ")[2].startswith(reason)
        assert not engine.room_for([request()])
        with pytest.raises(EngineDown):
            engine.submit(request(), EventRecorder())
        await until(lambda: bool(exits.codes))
        assert exits.codes[0][1] == EXIT_CODE != 0


async def test_a_death_is_told_to_subscribers(tmp_path: Path) -> None:
    states: list[EngineState] = []
    async with running_engine(unkind_checkpoint(tmp_path, worker_dies_at_step=3), SOON) as engine:
        engine.subscribe(lambda: states.append(engine.health().state))
        engine.submit(request(max_output_tokens=300), EventRecorder())
        await until(lambda: EngineState.DEAD in states)


async def test_silence_is_doubted_before_it_is_death(tmp_path: Path) -> None:
    options = Options(silence_s=2.0)
    async with running_engine(unkind_checkpoint(tmp_path, worker_silent_at_step=3), options) as engine:
        recorder = EventRecorder()
        engine.submit(request(max_output_tokens=300), recorder)
        await until(lambda: engine.health().state is EngineState.DEGRADED)
        assert recorder.terminals == []
        await recorder.until_ended(BOUND_S)
        assert engine.health().state is EngineState.DEAD


async def test_callers_who_give_up_one_after_the_other_do_not_hide_a_dead_worker(tmp_path: Path) -> None:
    """Each leaves before the silence bound, so none of them alone proves anything."""
    options = Options(silence_s=1.0, cancel_grace_s=0.05)
    async with running_engine(unkind_checkpoint(tmp_path, worker_silent_at_step=1), options) as engine:
        while engine.room_for([request()]):
            recorder = EventRecorder()
            stream = engine.submit(request(), recorder)
            await asyncio.sleep(0)
            stream.cancel()
            await recorder.until_ended(BOUND_S)
        await until(lambda: engine.health().state is EngineState.DEAD)
        assert "requests without any answer" in engine.health().reason


async def test_an_idle_engine_is_not_dead(tmp_path: Path) -> None:
    exits = Exits()
    async with running_engine(toy_checkpoint(), Options(silence_s=0.05, loop_stuck_s=5.0), exits=exits) as engine:
        beats = {engine.health().last_progress}
        while len(beats) < 4:
            await until(lambda: engine.health().last_progress not in beats)
            beats.add(engine.health().last_progress)
        assert engine.health().state is EngineState.READY
    assert exits.codes == []


async def test_a_teardown_that_hangs_is_given_up_and_the_process_ends(tmp_path: Path) -> None:
    exits = Exits()
    engine = TensorRTEngine(
        unkind_checkpoint(tmp_path, shutdown_hangs=True), Options(teardown_s=0.2), exit_process=exits
    )
    await engine.start()
    await engine.shutdown(grace_s=0.0)
    await until(lambda: bool(exits.codes))
    assert exits.codes[0][1] == EXIT_CODE


async def test_an_orderly_shutdown_ends_no_process(tmp_path: Path) -> None:
    exits = Exits()
    checkpoint = unkind_checkpoint(tmp_path, writes_report=True)
    async with running_engine(checkpoint, exits=exits) as engine:
        recorder = EventRecorder()
        engine.submit(request(max_output_tokens=4), recorder)
        await engine.shutdown(grace_s=BOUND_S)
        assert recorder.finished
    assert exits.codes == []
    assert (tmp_path / "standin-report.json").exists()


async def test_requests_that_meet_a_shutdown_do_not_make_it_a_death(tmp_path: Path) -> None:
    checkpoint = unkind_checkpoint(tmp_path)
    for _ in range(10):
        async with running_engine(checkpoint) as engine:
            recorders = [EventRecorder() for _ in range(8)]
            for recorder in recorders:
                engine.submit(request(), recorder)
            await engine.shutdown(grace_s=0.0)
            assert {type(recorder.failure) for recorder in recorders} == {EngineDown}
            assert engine.health().reason == "shut down"


async def test_a_model_that_does_not_load_says_why(tmp_path: Path) -> None:
    engine = TensorRTEngine(unkind_checkpoint(tmp_path, load_fails="CUDA out of memory"))
    with pytest.raises(EngineDown, match="could not load the model: CUDA out of memory"):
        await engine.start()
    assert engine.health().state is EngineState.STARTING
    await engine.shutdown(grace_s=0.0)


async def test_loading_that_never_ends_is_given_up(tmp_path: Path) -> None:
    exits = Exits()
    options = Options(start_timeout_s=0.2, exit_s=0.2)
    engine = TensorRTEngine(unkind_checkpoint(tmp_path, load_hangs=True), options, exit_process=exits)
    with pytest.raises(EngineDown, match=r"not loaded within 0\.2 s"):
        await engine.start()
    with pytest.raises(Starting):
        engine.submit(request(), EventRecorder())
    await until(lambda: bool(exits.codes))
