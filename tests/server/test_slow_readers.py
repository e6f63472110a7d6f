"""A slow reader gets fewer and larger messages; one that reads nothing is ended, and nobody else notices."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import grpc
import pytest
from inferwire.v1 import generation_pb2, inference_pb2_grpc
from inferwire_server.engines.scripted import Plan, PlanBook, ScriptedOptions
from inferwire_server.scheduling.event_log import MAX_DELTA_TOKENS

from tests.neighbour import neighbour
from tests.polling import until
from tests.serving import Serving, error_info, refusal, request, rest_of, retry_hint_ms, serving

FAST = ScriptedOptions(step_base_s=0.001, max_running=16)
SMALL_WINDOW = [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 16384)]
LARGE_DELTAS: dict[str, Any] = {"output": {"top_logprobs": 20, "token_ids": True}, "max_output_tokens": 8000}
"""About half a kilobyte a token, so that a window of 64 KiB is full in no time."""


class StallingClient:
    """A connection of its own whose streams are opened and then not read."""

    def __init__(self, server: Serving) -> None:
        self.channel = grpc.aio.insecure_channel(server.address, options=SMALL_WINDOW)
        self.inference = inference_pb2_grpc.InferenceServiceStub(self.channel)

    async def stalled(self, **fields: Any) -> Any:
        stream: Any = self.inference.StreamGenerate(request(**(LARGE_DELTAS | fields)))
        assert (await stream.read()).HasField("started")
        return stream


def refusals(server: Serving) -> int:
    return int(server.sample("inferwire_refusals_total", reason="READER_STALLED"))


async def test_a_reader_that_reads_nothing_is_ended_and_told_when_it_comes_back() -> None:
    async with serving(FAST, stall_time=0.4) as server:
        client = StallingClient(server)
        stream = await client.stalled()
        await until(lambda: refusals(server) == 1)
        assert server.outcomes() == {"reader_stalled": 1}
        await until(lambda: server.engine.load().running == 0)
        error = await refusal(rest_of(stream))
        assert (error.code(), error_info(error).reason) == (grpc.StatusCode.ABORTED, "READER_STALLED")
        assert (error_info(error).metadata["started"], retry_hint_ms(error)) == ("true", None)
        await client.channel.close()
        await until(lambda: server.is_quiet)


async def test_eight_stalled_readers_leave_a_neighbour_alone_and_nothing_behind() -> None:
    async with serving(FAST, stall_time=2.0) as server:
        tasks = len(asyncio.all_tasks())
        client = StallingClient(server)
        async with neighbour(server, output_tokens=500):
            streams = [await client.stalled() for _ in range(8)]
            await until(lambda: refusals(server) == 8, 30.0)
        assert server.outcomes()["reader_stalled"] == 8
        await until(lambda: server.engine.load().running == 0)
        for stream in streams:
            stream.cancel()
        await client.channel.close()
        await until(lambda: server.is_quiet)
        await until(lambda: len(asyncio.all_tasks()) <= tasks)


async def test_a_stalled_reader_of_a_generation_that_is_already_over_is_ended_too() -> None:
    async with serving(FAST, stall_time=1000) as server:
        client = StallingClient(server)
        await client.stalled(max_output_tokens=400)
        await until(lambda: server.outcomes() == {"ok": 1})
        assert server.calls_under_way == 1
        server.server.sessions.sweep(time.monotonic() + 1001)
        await until(lambda: refusals(server) == 1)
        await client.channel.close()


async def test_a_stalled_reader_may_come_back_within_its_grace() -> None:
    async with serving(FAST, stall_time=0.4) as server:
        client = StallingClient(server)
        grace = {"request_id": "job-1", "scheduling": {"detach_grace": {"seconds": 60}}, "max_output_tokens": 2000}
        await client.stalled(**grace)
        await until(lambda: refusals(server) == 1)
        message = request(**(LARGE_DELTAS | grace))
        tokens = sum([event.delta.token_count async for event in server.inference.StreamGenerate(message)])
        assert tokens == 2000
        assert server.outcomes() == {"ok": 1}
        await client.channel.close()


async def test_a_stalled_reader_does_not_hold_up_another_reader_of_the_same_generation() -> None:
    async with serving(FAST, stall_time=1.5) as server:
        client = StallingClient(server)
        await client.stalled(request_id="job-1", max_output_tokens=2000)
        message = request(**(LARGE_DELTAS | {"request_id": "job-1", "max_output_tokens": 2000}))
        assert sum([event.delta.token_count async for event in server.inference.StreamGenerate(message)]) == 2000
        await until(lambda: refusals(server) == 1)
        assert server.outcomes() == {"ok": 1}
        await client.channel.close()


async def test_a_slow_reader_gets_fewer_and_larger_messages_and_every_token() -> None:
    async with serving(FAST, stall_time=5.0) as server:
        client = StallingClient(server)
        stream = await client.stalled(max_output_tokens=1000)
        await until(lambda: server.engine.load().running == 0)
        counts = [event.delta.token_count async for event in rest_of(stream) if event.HasField("delta")]
        assert sum(counts) == 1000
        assert max(counts) > 100
        await client.channel.close()


async def test_silence_of_the_engine_is_not_a_stalled_reader() -> None:
    plans = PlanBook(otherwise=Plan(first_token_delay_s=0.5, token_delay_s=0.3))
    async with serving(FAST, plans=plans, stall_time=0.1) as server:
        answer = await server.inference.Generate(request(max_output_tokens=3))
        assert answer.usage.output_tokens == 3
        stream = server.inference.StreamGenerate(request(max_output_tokens=3))
        assert sum([event.delta.token_count async for event in stream]) == 3


async def test_one_message_never_carries_more_than_a_bounded_number_of_tokens() -> None:
    async with serving(ScriptedOptions(step_base_s=0.0002), stall_time=5.0) as server:
        message = request(request_id="job-1", max_output_tokens=2500)
        await server.inference.Generate(message)
        replay = server.inference.StreamGenerate(message)
        counts = [event.delta.token_count async for event in replay if event.WhichOneof("event") == "delta"]
    assert sum(counts) == 2500
    assert max(counts) <= MAX_DELTA_TOKENS


@pytest.mark.parametrize("count", [1, 4])
async def test_a_replay_in_several_messages_keeps_the_order_of_the_contract(count: int) -> None:
    async with serving(ScriptedOptions(step_base_s=0.0002)) as server:
        message = request(request_id="job-1", max_output_tokens=1500, output={"count": count, "token_ids": True})
        whole = await server.inference.Generate(message)
        outputs: list[list[int]] = [[] for _ in range(count)]
        finished: set[int] = set()
        async for event in server.inference.StreamGenerate(message):
            kind = event.WhichOneof("event")
            if kind == "delta":
                assert event.delta.output_index not in finished
                assert event.delta.token_offset == len(outputs[event.delta.output_index])
                outputs[event.delta.output_index] += event.delta.token_ids
            elif kind == "finished":
                finished.add(event.finished.output_index)
        assert kind == "completed"
        assert outputs == [list(output.token_ids) for output in whole.outputs]
        assert isinstance(whole, generation_pb2.GenerateResponse)
