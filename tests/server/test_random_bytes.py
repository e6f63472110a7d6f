"""Whatever bytes a model produces, what is sent is text in whole characters, the same in a stream and in one answer."""

from __future__ import annotations

import asyncio
import codecs

import pytest

from tests.serving import Serving, request, serving

REPLACEMENT = "�"


async def assert_stream_equals_unary(server: Serving, seed: int) -> int:
    """Returns how many bytes of the output were no whole character."""
    message = request(
        sampling={"temperature": 2.0, "top_p": 1.0, "seed": seed}, output={"token_ids": True}, max_output_tokens=64
    )
    events = [event async for event in server.inference.StreamGenerate(message)]
    unary = (await server.inference.Generate(message)).outputs[0]
    deltas = [event.delta for event in events if event.WhichOneof("event") == "delta"]
    assert "".join(delta.text for delta in deltas) == unary.text
    assert [token for delta in deltas for token in delta.token_ids] == list(unary.token_ids)
    assert all(delta.text for delta in deltas[:-1])
    return unary.text.count(REPLACEMENT)


@pytest.mark.case("H08")
async def test_random_bytes_never_break_the_stream() -> None:
    async with serving() as server:
        broken = await asyncio.gather(*[assert_stream_equals_unary(server, seed) for seed in range(64)])
    assert sum(broken) > 64


@pytest.mark.case("H08")
@pytest.mark.parametrize("seed", range(8))
async def test_no_delta_ends_inside_a_character(seed: int) -> None:
    async with serving() as server:
        message = request(sampling={"temperature": 2.0, "seed": seed}, output={"token_ids": True}, max_output_tokens=64)
        stream = server.inference.StreamGenerate(message)
        deltas = [event.delta async for event in stream if event.WhichOneof("event") == "delta"]
    for delta in deltas[:-1]:
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        assert decoder.decode(bytes(token for token in delta.token_ids if token < 256)) == delta.text
        assert decoder.getstate()[0] == b""
