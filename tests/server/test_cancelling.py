"""A caller that leaves frees everything at once."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest
from inferwire.v1 import generation_pb2
from inferwire_server.engines.scripted import ScriptedOptions

from tests.polling import until
from tests.serving import QUICK, Serving, request, serving

SMALL = ScriptedOptions(step_base_s=0.005, max_running=2, max_context_tokens=512, kv_blocks=64)
WAVES = 10


async def started(server: Serving, message: generation_pb2.GenerateRequest, deltas: int = 3) -> Any:
    """A stream that has brought some deltas."""
    stream = server.inference.StreamGenerate(message)
    async for event in stream:
        deltas -= event.WhichOneof("event") == "delta"
        if not deltas:
            return stream
    raise AssertionError("the stream ended")


async def code_of(stream: Any) -> grpc.StatusCode:
    """The status of a call that was cancelled here."""
    with pytest.raises(asyncio.CancelledError):
        await stream.read()
    code: grpc.StatusCode = await stream.code()
    return code


@pytest.mark.case("H01")
async def test_cancelled_streams_free_slots_blocks_and_gauges_wave_after_wave() -> None:
    async with serving(SMALL, max_waiting=4) as server:
        for wave in range(1, WAVES + 1):
            message = request(max_output_tokens=400, sampling={"seed": wave})
            streams = await asyncio.gather(started(server, message), started(server, message))
            for stream in streams:
                stream.cancel()
            assert [await code_of(stream) for stream in streams] == [grpc.StatusCode.CANCELLED] * 2
            await until(lambda: server.is_quiet)
            assert server.outcomes()["cancelled"] == 2 * wave
        assert server.outcomes() == {"cancelled": 2 * WAVES}
        assert server.engine.load().kv_blocks_used == 0
        assert await server.is_alive()


@pytest.mark.case("H01")
async def test_the_engine_stops_within_three_steps_of_the_caller_s_leaving() -> None:
    async with serving(SMALL) as server:
        streams = [await started(server, request(max_output_tokens=400, sampling={"seed": n})) for n in (1, 2)]
        for stream in streams:
            stream.cancel()
        await until(lambda: server.outcomes().get("cancelled") == 2)
        steps = server.sample("inferwire_steps_total")
        produced = server.sample("inferwire_output_tokens_total")
        await until(lambda: server.engine.load().running == 0)
        assert server.sample("inferwire_steps_total") - steps <= 3
        assert server.sample("inferwire_output_tokens_total") == produced < 800


async def test_a_unary_caller_that_leaves_frees_its_slot_too() -> None:
    async with serving(SMALL) as server:
        call = server.inference.Generate(request(max_output_tokens=400))
        await until(lambda: server.engine.load().running == 1)
        call.cancel()
        await until(lambda: server.is_quiet)
        assert server.outcomes() == {"cancelled": 1}


async def test_a_lost_connection_cancels_what_it_carried() -> None:
    async with serving(SMALL) as server, grpc.aio.insecure_channel(server.address) as other:
        call: Any = other.unary_stream("/inferwire.v1.InferenceService/StreamGenerate")
        stream = call(request(max_output_tokens=400).SerializeToString())
        await stream.read()
        await other.close()
        await until(lambda: server.is_quiet)
        assert server.outcomes() == {"cancelled": 1}


async def test_a_stop_string_s_output_leaves_the_engine_while_its_sibling_goes_on() -> None:
    async with serving(SMALL) as server:
        message = request(output={"count": 2}, stop={"strings": ["e"]}, max_output_tokens=300)
        stream = server.inference.StreamGenerate(message)
        finished = [event.finished async for event in stream if event.WhichOneof("event") == "finished"]
        await until(lambda: server.is_quiet)
    assert sorted(each.output_index for each in finished) == [0, 1]
    assert {each.stop_string for each in finished} == {"e"}


@pytest.mark.slow
@pytest.mark.timeout(180)
async def test_a_thousand_streams_cancelled_at_once_leave_nothing_behind() -> None:
    options = ScriptedOptions(step_base_s=0.5, max_running=1000)
    async with serving(options, max_waiting=1000) as server:
        tasks = len(asyncio.all_tasks())
        streams = [server.inference.StreamGenerate(request(max_output_tokens=200)) for _ in range(1000)]
        async with asyncio.timeout(150):
            await asyncio.gather(*[stream.read() for stream in streams])
            assert server.engine.load().running == 1000
            for stream in streams:
                stream.cancel()
            await until(lambda: server.is_quiet, within_s=60)
            await until(lambda: len(asyncio.all_tasks()) <= tasks, within_s=60)
        assert server.outcomes() == {"cancelled": 1000}
        assert await server.is_alive()


async def test_a_reader_that_leaves_before_the_first_token_is_no_fault_of_ours() -> None:
    async with serving(QUICK) as server:
        for _ in range(50):
            stream = server.inference.StreamGenerate(request())
            await asyncio.sleep(0)
            stream.cancel()
        await until(lambda: server.is_quiet)
        assert not server.sample("inferwire_refusals_total", reason="INTERNAL")
        assert await server.is_alive()
