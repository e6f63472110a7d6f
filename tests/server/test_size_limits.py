"""Sizes: one published number for messages; a prompt that fits in a message but not in the model is the caller's."""

from __future__ import annotations

from typing import Any

import grpc
import pytest
from inferwire.v1 import generation_pb2, inference_pb2
from inferwire_server.engines.scripted import ScriptedOptions

from tests.neighbour import neighbour
from tests.serving import Serving, bad_request, error_info, refusal, request, retry_hint_ms, serving

MIB = 1024 * 1024

pytestmark = pytest.mark.case("H05")


async def published_limit(server: Serving) -> int:
    info = await server.inference.GetServerInfo(inference_pb2.GetServerInfoRequest())
    limit: int = info.max_message_bytes
    return limit


def of_size(size: int, **fields: Any) -> generation_pb2.GenerateRequest:
    """A request that takes exactly so many bytes on the wire."""
    message = request("", **fields)
    message.prompt = "word " * ((size - message.ByteSize()) // 5)
    while message.ByteSize() < size:
        message.prompt += "x" * (size - message.ByteSize())
    while message.ByteSize() > size:
        message.prompt = message.prompt[: size - message.ByteSize()]
    assert message.ByteSize() == size
    return message


methods = pytest.mark.parametrize("method", ["Generate", "StreamGenerate"])


@methods
async def test_just_under_the_message_limit_the_context_is_what_refuses(method: str) -> None:
    async with serving() as server, neighbour(server):
        limit = await published_limit(server)
        error = await refusal(getattr(server.inference, method)(of_size(limit - 64), timeout=30))
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert bad_request(error).field_violations[0].field == "prompt"
        assert error_info(error).metadata["limit"] == "8191"
        assert int(error_info(error).metadata["actual"]) > 8191
        assert await server.is_alive()


@methods
@pytest.mark.parametrize("excess", [1, MIB // 2])
async def test_over_the_message_limit_grpc_refuses_without_a_hint(method: str, excess: int) -> None:
    async with serving() as server, neighbour(server):
        limit = await published_limit(server)
        error = await refusal(getattr(server.inference, method)(of_size(limit + excess), timeout=30))
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert retry_hint_ms(error) is None
        assert await server.is_alive()


async def test_the_published_limit_is_the_one_that_is_set_and_is_inclusive() -> None:
    async with serving(max_request_bytes=2048) as server:
        assert await published_limit(server) == 2048
        fitting = await server.inference.Generate(of_size(2048))
        assert fitting.usage.output_tokens == 16
        error = await refusal(server.inference.Generate(of_size(2049)))
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


@pytest.mark.parametrize(
    ("field", "fields"),
    [
        ("token_ids.ids", {"token_ids": {"ids": [1] * MIB}}),
        ("chat.messages", {"chat": {"messages": [{"role": "user", "text": "word " * (MIB // 2)}]}}),
    ],
)
async def test_ids_and_chats_over_the_context_are_refused_with_both_numbers(field: str, fields: dict[str, Any]) -> None:
    async with serving() as server, neighbour(server):
        error = await refusal(server.inference.Generate(request(prompt=None, **fields), timeout=30))
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert bad_request(error).field_violations[0].field.startswith(field)
        assert error_info(error).metadata["limit"] == "8191"
        assert int(error_info(error).metadata["actual"]) > 8191
        assert await server.is_alive()


async def test_tokenize_counts_what_no_model_could_take_only_up_to_the_context() -> None:
    async with serving() as server:
        error = await refusal(
            server.inference.Tokenize(inference_pb2.TokenizeRequest(model="scripted", prompt="x" * MIB))
        )
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert await server.is_alive()


async def test_an_answer_over_the_limit_for_answers_is_refused_and_a_stream_of_it_is_not() -> None:
    async with serving(ScriptedOptions(step_base_s=0.0002), max_response_bytes=2048) as server:
        message = request(max_output_tokens=1500, sampling={"seed": 1}, output={"token_ids": True})
        error = await refusal(server.inference.Generate(message))
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert retry_hint_ms(error) is None
        events = [event async for event in server.inference.StreamGenerate(message)]
        assert events[-1].completed.usage.output_tokens == 1500
        assert await server.is_alive()
