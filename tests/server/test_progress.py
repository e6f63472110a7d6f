"""Signs of life for whoever asks: the place in the queue, the prefill, the decoding, and nothing when not asked."""

from __future__ import annotations

from typing import Any

from inferwire.v1 import generation_pb2
from inferwire_server.engines.scripted import Plan, PlanBook, ScriptedOptions

from tests.polling import until
from tests.serving import request, rest_of, serving

OFTEN: dict[str, Any] = {"progress_interval": {"nanos": 10**8}}
QUEUED, PREFILL, DECODE = (
    generation_pb2.STAGE_QUEUED,
    generation_pb2.STAGE_PREFILL,
    generation_pb2.STAGE_DECODE,
)


async def test_a_waiting_request_is_told_its_place_as_it_moves_up() -> None:
    async with serving(ScriptedOptions(step_base_s=0.005, max_running=1)) as server:
        first: Any = server.inference.StreamGenerate(request(max_output_tokens=4000))
        await first.read()
        second: Any = server.inference.StreamGenerate(request(max_output_tokens=4000))
        await until(lambda: server.sample("inferwire_waiting_generations") == 1)
        third: Any = server.inference.StreamGenerate(request(**OFTEN))
        progress = (await third.read()).progress
        assert (progress.stage, progress.queue_position) == (QUEUED, 2)
        second.cancel()
        while progress.queue_position != 1:
            progress = (await third.read()).progress
            assert progress.stage == QUEUED
        first.cancel()
        kinds = [event.WhichOneof("event") async for event in rest_of(third)]
        assert kinds[-1] == "completed"
        assert kinds.index("started") <= kinds.index("delta")


async def test_a_long_prefill_shows_how_far_it_is() -> None:
    slow = ScriptedOptions(step_base_s=0.05, prefill_chunk_tokens=64)
    async with serving(slow) as server:
        stream: Any = server.inference.StreamGenerate(request("x" * 639, **OFTEN))
        events = [event async for event in rest_of(stream)]
    assert events[0].WhichOneof("event") == "started"
    done = [event.progress.prompt_tokens_done for event in events if event.progress.stage == PREFILL]
    assert done == sorted(done)
    assert any(0 < tokens < 640 for tokens in done)


async def test_a_silent_model_is_shown_to_be_decoding() -> None:
    plans = PlanBook(otherwise=Plan(token_delay_s=0.4))
    async with serving(ScriptedOptions(step_base_s=0.005), plans=plans) as server:
        stream: Any = server.inference.StreamGenerate(request(max_output_tokens=3, **OFTEN))
        events = [event async for event in rest_of(stream)]
    stages = [event.progress.stage for event in events if event.HasField("progress")]
    assert DECODE in stages
    assert events[-1].HasField("completed")


async def test_a_stream_that_keeps_bringing_tokens_has_no_progress() -> None:
    async with serving() as server:
        stream = server.inference.StreamGenerate(request(progress_interval={"seconds": 60}))
        assert not [event async for event in stream if event.HasField("progress")]


async def test_whoever_did_not_ask_gets_none() -> None:
    plans = PlanBook(otherwise=Plan(first_token_delay_s=0.5))
    async with serving(plans=plans) as server:
        stream = server.inference.StreamGenerate(request())
        assert not [event async for event in stream if event.HasField("progress")]


async def test_progress_adds_nothing_to_what_is_delivered() -> None:
    plans = PlanBook(otherwise=Plan(token_delay_s=0.12))
    async with serving(plans=plans) as server:
        fields: dict[str, Any] = {"sampling": {"seed": 1}, "max_output_tokens": 5, "output": {"token_ids": True}}
        with_progress = [event async for event in server.inference.StreamGenerate(request(**fields, **OFTEN))]
        unary = await server.inference.Generate(request(**fields))
    ids = [token for event in with_progress for token in event.delta.token_ids]
    assert ids == list(unary.outputs[0].token_ids)
    assert any(event.HasField("progress") for event in with_progress)
