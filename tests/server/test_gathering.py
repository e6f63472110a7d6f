"""A reader that is slower than the engine gets more tokens a message, not more messages."""

from __future__ import annotations

from inferwire.v1 import generation_pb2
from inferwire_server.engines.scripted import ScriptedOptions

from tests.serving import Serving, request, serving

TOKENS = 2000
AT_ONCE = ScriptedOptions(step_base_s=0.0)


async def deltas_of(server: Serving) -> list[generation_pb2.Delta]:
    message = request(max_output_tokens=TOKENS, stop={"ignore_end_of_sequence": True}, output={"token_ids": True})
    stream = server.inference.StreamGenerate(message)
    return [event.delta async for event in stream if event.HasField("delta")]


async def test_an_engine_faster_than_any_reader_is_read_in_few_messages() -> None:
    async with serving(AT_ONCE) as server:
        deltas = await deltas_of(server)
    assert sum(delta.token_count for delta in deltas) == TOKENS
    assert len(deltas) <= TOKENS / 8


async def test_gathered_messages_follow_each_other_without_a_gap_and_say_what_unary_says() -> None:
    async with serving(AT_ONCE) as server:
        deltas = await deltas_of(server)
        seed = {"seed": 7}
        whole = await server.inference.Generate(request(max_output_tokens=300, sampling=seed))
        stream = server.inference.StreamGenerate(request(max_output_tokens=300, sampling=seed))
        text = "".join([event.delta.text async for event in stream])
    reached = 0
    for delta in deltas:
        assert (delta.token_offset, len(delta.token_ids)) == (reached, delta.token_count)
        reached += delta.token_count
    assert text == whole.outputs[0].text
