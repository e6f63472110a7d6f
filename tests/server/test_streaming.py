"""Streams: the order of events, whole characters, one end, and the same text as unary."""

from __future__ import annotations

import pytest
from inferwire.v1 import generation_pb2
from inferwire_server.engines.scripted import Echo, Plan

from tests.server.text.strings import STRINGS
from tests.serving import request, serving


async def test_events_come_in_the_order_of_the_contract() -> None:
    async with serving() as server:
        kinds = [e.WhichOneof("event") async for e in server.inference.StreamGenerate(request(max_output_tokens=4))]
    assert kinds[0] == "started"
    assert kinds[-2:] == ["finished", "completed"]
    assert set(kinds[1:-2]) == {"delta"}


async def test_the_first_token_arrives_before_the_generation_ends() -> None:
    async with serving() as server:
        stream = server.inference.StreamGenerate(request(max_output_tokens=2000))
        await stream.read()
        first = await stream.read()
        assert isinstance(first, generation_pb2.StreamGenerateResponse)
        assert first.delta.token_count
        assert server.engine.load().running == 1
        stream.cancel()


@pytest.mark.case("H07")
@pytest.mark.parametrize("name", STRINGS)
async def test_stream_equals_unary_equals_what_the_model_said(name: str) -> None:
    said = STRINGS[name]
    async with serving(plans=lambda _: Plan(reply=Echo(after="Repeat: "))) as server:
        message = request("Repeat: " + said, max_output_tokens=600, sampling={"temperature": 0})
        events = [event async for event in server.inference.StreamGenerate(message)]
        unary = await server.inference.Generate(message)
    deltas = [event.delta.text for event in events if event.WhichOneof("event") == "delta"]
    assert "".join(deltas) == unary.outputs[0].text == said
    assert all(deltas)


async def test_several_outputs_share_a_stream_by_index() -> None:
    async with serving() as server:
        message = request(output={"count": 3, "token_ids": True}, sampling={"seed": 7}, max_output_tokens=12)
        events = [event async for event in server.inference.StreamGenerate(message)]
        unary = await server.inference.Generate(message)
    texts = ["", "", ""]
    for event in events:
        if event.WhichOneof("event") == "delta":
            texts[event.delta.output_index] += event.delta.text
    assert texts == [output.text for output in unary.outputs]
    assert len(set(texts)) == 3
    assert events[-1].completed.usage.output_tokens == 36


async def test_offsets_count_every_token_once() -> None:
    async with serving() as server:
        message = request(output={"token_ids": True}, max_output_tokens=50)
        stream = server.inference.StreamGenerate(message)
        deltas = [event.delta async for event in stream if event.WhichOneof("event") == "delta"]
    offset = 0
    for delta in deltas:
        assert delta.token_offset == offset
        assert delta.token_count == len(delta.token_ids)
        offset += delta.token_count
    assert offset == 50
