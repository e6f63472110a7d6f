"""Streams over the unkind stand-in: one wake-up a step, each error in its class, the engine alive after it."""

from __future__ import annotations

import asyncio
import sys
import threading
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import uvloop
from inferwire_server.domain.engine import Cancelled, EngineState, Failed, Finished, Tokens
from inferwire_server.domain.errors import InvalidRequest, Overloaded, ServiceError
from inferwire_server.domain.generation import FinishReason, Grammar, GrammarKind, Sampling
from inferwire_server.engines.tensorrt_llm.engine import TensorRTEngine
from inferwire_server.engines.tensorrt_llm.options import Options

from tests.engines.event_recorder import EventRecorder
from tests.engines.tensorrt_llm.running_engine import BOUND_S, request, running_engine, until
from tests.engines.tensorrt_llm.toy_checkpoint import toy_checkpoint, unkind_checkpoint

pytestmark = pytest.mark.usefixtures("standin")

FAILS, STRAYS, NEVER_ACKNOWLEDGES, ACKNOWLEDGES_LATE, FAILS_AT_ONCE = range(801, 806)
"""First prompt ids to which the stand-in takes exception; see its module temperament."""


def record() -> Any:
    """What the latest stand-in was asked to do."""
    return import_module("tensorrt_llm.temperament").records[-1]


async def ended(engine: TensorRTEngine, *prompts: tuple[int, ...], **changes: Any) -> list[EventRecorder]:
    """Submit a request for each prompt together, and wait for all."""
    recorders = [EventRecorder() for _ in prompts]
    for prompt, recorder in zip(prompts, recorders, strict=True):
        engine.submit(request(prompt, **changes), recorder)
    for recorder in recorders:
        await recorder.until_ended(BOUND_S)
    return recorders


async def test_the_engines_own_loop_submits_and_iterates() -> None:
    async with running_engine(toy_checkpoint()) as engine:
        await ended(engine, *[(201 + n,) for n in range(8)])
        assert len(record().submitting_threads) == 1
        assert threading.get_ident() not in record().submitting_threads


async def test_a_step_of_the_whole_batch_wakes_the_serving_loop_once(tmp_path: Path) -> None:
    checkpoint = unkind_checkpoint(tmp_path, step_s=0.02, tokens_per_step=[1])
    async with running_engine(checkpoint) as engine:
        recorders = await ended(engine, *[(201 + n,) for n in range(16)], max_output_tokens=20)
        events = sum(len(recorder.events) for recorder in recorders)
        assert events == 16 * 21
        assert engine.load().extra["delivered_batches"] <= 2 * 20 + 16


async def test_a_delta_has_every_token_of_a_step(tmp_path: Path) -> None:
    async with running_engine(unkind_checkpoint(tmp_path, tokens_per_step=[4])) as engine:
        (recorder,) = await ended(engine, (201,), max_output_tokens=16)
        sizes = [len(event.token_ids) for event in recorder.events if isinstance(event, Tokens)]
        assert sizes == [4, 4, 4, 4]


async def test_the_engines_own_queue_stays_empty(tmp_path: Path) -> None:
    async with running_engine(unkind_checkpoint(tmp_path, step_s=0.002), Options(max_batch_size=4)) as engine:
        recorders: list[EventRecorder] = []
        for number in range(40):
            await until(lambda: engine.room_for([request()]))
            recorders.append(EventRecorder())
            engine.submit(request((201 + number,)), recorders[-1])
        for recorder in recorders:
            await recorder.until_ended(BOUND_S)
        assert record().waiting_peak == 0


async def test_a_cache_too_small_for_two_holds_the_second_back() -> None:
    options = Options(kv_cache_max_tokens=128, statistics=False)
    async with running_engine(toy_checkpoint(), options) as engine:
        large = request(max_output_tokens=90)
        first = EventRecorder()
        engine.submit(large, first)
        assert not engine.room_for([large])
        with pytest.raises(Overloaded):
            engine.submit(large, EventRecorder())
        await first.until_ended(BOUND_S)
        assert engine.room_for([large])


async def test_what_the_cache_can_never_hold_is_the_callers_fault() -> None:
    async with running_engine(toy_checkpoint(), Options(kv_cache_max_tokens=128, statistics=False)) as engine:
        with pytest.raises(InvalidRequest, match="needs 5 cache blocks of 4"):
            engine.submit(request(max_output_tokens=130), EventRecorder())


async def test_a_stop_id_in_the_very_last_place_is_a_stop() -> None:
    async with running_engine(toy_checkpoint()) as engine:
        (free,) = await ended(engine, (201,), max_output_tokens=8)
        last = free.token_ids[-1]
        first_place = free.token_ids.index(last)
        (stopped,) = await ended(engine, (201,), max_output_tokens=first_place + 1, stop_token_ids=frozenset({last}))
        assert stopped.token_ids == free.token_ids[:first_place]
        assert stopped.finished.reason is FinishReason.STOP
        assert stopped.finished.stop_token_id == last


async def test_a_request_error_after_tokens_is_our_fault_and_harms_nobody_else() -> None:
    async with running_engine(toy_checkpoint()) as engine:
        failed, fine = await ended(engine, (FAILS, 1), (201,))
        assert not isinstance(failed.failure, ServiceError)
        assert fine.finished
        assert engine.health().state is EngineState.READY


async def test_a_request_error_for_a_grammar_is_the_callers_fault() -> None:
    grammar = Grammar(kind=GrammarKind.REGEX, source="a")
    async with running_engine(toy_checkpoint(), Options(guided_decoding="xgrammar")) as engine:
        (failed,) = await ended(engine, (FAILS_AT_ONCE, 1), grammar=grammar)
        assert isinstance(failed.failure, InvalidRequest)
        assert failed.failure.field == "structured_output"
        assert "secret" not in failed.failure.message
        assert engine.health().state is EngineState.READY


async def test_a_value_error_at_submission_is_the_callers_fault_and_no_death() -> None:
    """A temperature that only the engine refuses stands for every check that it has and this adapter has not."""
    async with running_engine(toy_checkpoint()) as engine:
        (failed,) = await ended(engine, (201,), sampling=Sampling(temperature=-1.0))
        (fine,) = await ended(engine, (201,))
        assert isinstance(failed.failure, InvalidRequest)
        assert fine.finished
        assert engine.health().state is EngineState.READY


async def test_an_id_outside_the_vocabulary_ends_that_stream_alone(tmp_path: Path) -> None:
    async with running_engine(unkind_checkpoint(tmp_path, tokens_per_step=[1])) as engine:
        strayed, fine = await ended(engine, (STRAYS, 1), (201,), max_output_tokens=64)
        assert len(strayed.token_ids) == 2
        assert not isinstance(strayed.failure, ServiceError)
        assert fine.finished
        await until(lambda: engine.load().extra["engine_tasks"] == 0)
        assert sum(record().aborts.values()) == 1


async def test_a_process_wide_hook_of_the_package_does_not_stay() -> None:
    before = sys.excepthook
    async with running_engine(toy_checkpoint()):
        assert sys.excepthook is before


async def test_salts_keep_tenants_apart() -> None:
    async with running_engine(toy_checkpoint()) as engine:
        prompt = tuple(range(200, 300))
        cached = []
        for namespace in ("1:a:", "1:a:", "1:b:", "1:a:x", ""):
            (recorder,) = await ended(engine, prompt, cache_namespace=namespace)
            cached.append(recorder.finished.cached_tokens)
        assert cached == [0, 96, 0, 0, 0]


async def test_a_thousand_streams_cancelled_at_random_points_leave_nothing_behind(tmp_path: Path) -> None:
    checkpoint = unkind_checkpoint(tmp_path, step_s=0.002)
    async with running_engine(checkpoint, Options(max_batch_size=64)) as engine:
        recorders: list[EventRecorder] = []

        async def one(number: int) -> None:
            recorder = EventRecorder()
            recorders.append(recorder)
            stream = engine.submit(request((201 + number % 300,), max_output_tokens=500), recorder)
            await recorder.until_tokens(number % 5, BOUND_S)
            stream.cancel()
            stream.cancel()
            await recorder.until_ended(BOUND_S)

        for start in range(0, 1000, 50):
            await asyncio.gather(*(one(start + offset) for offset in range(50)))
        await until(lambda: engine.load().extra["engine_tasks"] == 0)

        whole = sum(isinstance(recorder.terminal, Finished) for recorder in recorders)
        assert whole < 100
        assert all(isinstance(recorder.terminal, Finished | Cancelled) for recorder in recorders)
        assert set(record().aborts.values()) == {1}
        assert len(record().aborts) == engine.load().extra["aborted_requests"]
        assert record().submitted - whole <= len(record().aborts) <= record().submitted
        assert (record().live, record().live_salts) == (0, {})
        assert (engine.load().running, engine.load().kv_blocks_reserved) == (0, 0)


async def test_a_cancel_that_nobody_confirms_ends_its_stream_and_keeps_its_place_for_a_while() -> None:
    options = Options(max_batch_size=1, cancel_grace_s=0.05, cancel_hold_s=0.1)
    async with running_engine(toy_checkpoint(), options) as engine:
        recorder = EventRecorder()
        stream = engine.submit(request((NEVER_ACKNOWLEDGES, 1), max_output_tokens=300), recorder)
        await recorder.until_tokens(1, BOUND_S)
        stream.cancel()
        await recorder.until_ended(BOUND_S)
        assert recorder.terminal == Cancelled()
        assert (engine.load().running, engine.load().extra["overdue_requests"]) == (0, 1)
        assert not engine.room_for([request()])
        await until(lambda: engine.room_for([request()]))
        assert engine.load().extra["overdue_requests"] == 0


async def test_a_confirmation_that_comes_late_gives_the_place_back_and_says_nothing_more(tmp_path: Path) -> None:
    checkpoint = unkind_checkpoint(tmp_path, step_s=0.01)
    options = Options(max_batch_size=1, cancel_grace_s=0.02, cancel_hold_s=3600.0)
    async with running_engine(checkpoint, options) as engine:
        recorder = EventRecorder()
        stream = engine.submit(request((ACKNOWLEDGES_LATE, 1), max_output_tokens=300), recorder)
        await recorder.until_tokens(1, BOUND_S)
        stream.cancel()
        await recorder.until_ended(BOUND_S)
        assert not engine.room_for([request()])
        await until(lambda: engine.room_for([request()]))
        assert len(recorder.terminals) == 1


async def test_cancelling_in_the_same_breath_as_submitting_leaves_nothing_running(tmp_path: Path) -> None:
    """Whether the engine had begun is a race; what it began, it was told to stop."""
    async with running_engine(unkind_checkpoint(tmp_path, step_s=0.01)) as engine:
        recorder = EventRecorder()
        engine.submit(request(max_output_tokens=300), recorder).cancel()
        await recorder.until_ended(BOUND_S)
        assert recorder.terminal == Cancelled()
        assert record().submitted == len(record().aborts)


async def test_an_abort_after_the_engines_teardown_harms_nobody() -> None:
    async with running_engine(toy_checkpoint()) as engine:
        recorder = EventRecorder()
        stream = engine.submit(request(max_output_tokens=300), recorder)
        await recorder.until_tokens(1, BOUND_S)
        await engine.shutdown(grace_s=0.0)
        stream.cancel()
        assert isinstance(recorder.terminal, Failed)


async def test_logprobs_come_with_each_token_also_where_the_sampled_one_is_not_among_the_likeliest() -> None:
    options = Options(logprobs=True)
    sampling = Sampling(temperature=5.0)
    async with running_engine(toy_checkpoint(), options) as engine:
        (recorder,) = await ended(engine, (201,), top_logprobs=2, sampling=sampling, max_output_tokens=64)
        assert [entry.token.token_id for entry in recorder.logprobs] == recorder.token_ids
        assert {len(entry.top) for entry in recorder.logprobs} == {2}
        assert None in {entry.token.logprob for entry in recorder.logprobs}


@pytest.mark.parametrize(("mark", "end"), [(605, 2), (705, 7)], ids=["the engine's own", "the generation config's"])
async def test_an_output_ends_by_each_end_id_of_the_generation_config(mark: int, end: int) -> None:
    async with running_engine(toy_checkpoint()) as engine:
        for recorder in await ended(engine, *[(mark, 201 + n) for n in range(4)]):
            assert len(recorder.token_ids) == 5
            assert recorder.finished == Finished(reason=FinishReason.STOP, end_token_id=end, cached_tokens=0)


async def test_without_block_reuse_nothing_is_ever_cached() -> None:
    prompt = tuple(range(200, 300))
    async with running_engine(toy_checkpoint(), Options(kv_cache_block_reuse=False)) as engine:
        cached = [(await ended(engine, prompt))[0].finished.cached_tokens for _ in range(2)]
        assert cached == [0, 0]
        assert not engine.capabilities.prefix_caching


def test_it_serves_a_loop_of_either_kind() -> None:
    async def serve() -> EventRecorder:
        async with running_engine(toy_checkpoint()) as engine:
            return (await ended(engine, (201,)))[0]

    outputs = []
    for factory in (asyncio.new_event_loop, uvloop.new_event_loop):
        with asyncio.Runner(loop_factory=factory) as runner:
            outputs.append(runner.run(serve()).token_ids)
    assert outputs[0] == outputs[1]
    assert len(outputs[0]) == 16
