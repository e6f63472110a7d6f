"""What a request repeats is counted before it is read: a message full of one field is refused by the field's name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message
from inferwire.v1 import generation_pb2, inference_pb2, model_pb2, operations_pb2
from inferwire_server.domain.limits import LIMITS
from inferwire_server.rpc.sizes import REPEATED, Repeated, excess

from tests.neighbour import neighbour
from tests.serving import MODEL, Serving, bad_request, error_info, refusal, request, serving

MESSAGE_BYTES = 4 * 1024 * 1024
CONTEXT = 8192
"""Of the scripted model."""

GENERATION: dict[str, tuple[dict[str, Any], int]] = {
    "token_ids.ids": ({"token_ids": {"ids": [1]}}, CONTEXT - 1),
    "chat.messages": ({"chat": {"messages": [{}]}}, LIMITS.messages),
    "sampling.logit_bias": ({"sampling": {"logit_bias": [{}]}}, LIMITS.logit_bias_entries),
    "stop.strings": ({"stop": {"strings": [""]}}, LIMITS.stop_strings),
    "stop.token_ids": ({"stop": {"token_ids": [1]}}, LIMITS.stop_token_ids),
    "structured_output.choices.texts": ({"structured_output": {"choices": {"texts": [""]}}}, LIMITS.choices),
    "resume.outputs": ({"resume": {"outputs": [{}]}}, LIMITS.output_count),
}
"""Fields of GenerateRequest that repeat by themselves: the smallest value, and how many there may be."""

CALLS: list[tuple[str, type[Message], str, dict[str, Any], int]] = [
    *(("Generate", generation_pb2.GenerateRequest, path, *rest) for path, rest in GENERATION.items()),
    *(("StreamGenerate", generation_pb2.GenerateRequest, path, *rest) for path, rest in GENERATION.items()),
    ("Tokenize", inference_pb2.TokenizeRequest, "chat.messages", *GENERATION["chat.messages"]),
    ("Detokenize", inference_pb2.DetokenizeRequest, "token_ids", {"token_ids": [1]}, CONTEXT),
]


def send(server: Serving, method: str, encoded: bytes) -> Any:
    """A call with a message that is encoded already."""
    call: Any = server.channel.unary_unary(f"/inferwire.v1.InferenceService/{method}")
    return call(encoded, timeout=30)


def assert_too_many(error: grpc.aio.AioRpcError, path: str, limit: int, actual: int) -> None:
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert [each.field for each in bad_request(error).field_violations] == [path]
    metadata = error_info(error).metadata
    assert (metadata["field"], metadata["limit"], metadata["actual"]) == (path, str(limit), str(actual))


@pytest.mark.case("H05")
@pytest.mark.parametrize(
    ("method", "kind", "path", "value", "limit"), CALLS, ids=[f"{call[0]}-{call[2]}" for call in CALLS]
)
async def test_a_message_full_of_one_field_is_refused_by_its_name(
    method: str, kind: type[Message], path: str, value: dict[str, Any], limit: int
) -> None:
    head, one = kind(model=MODEL).SerializeToString(), kind(**value).SerializeToString()
    count = (MESSAGE_BYTES - len(head)) // len(one)
    async with serving() as server, neighbour(server):
        # Messages that follow one another are merged, their repeated fields joined.
        error = await refusal(send(server, method, head + one * count))
        assert_too_many(error, path, limit, count)
        assert await server.is_alive()


@pytest.mark.case("H05")
async def test_the_ids_of_one_resumed_output_are_bounded_by_the_context() -> None:
    message = request(resume={"prompt_digest": b"x", "outputs": [{}, {"token_ids": [1] * 4_000_000}]})
    async with serving() as server, neighbour(server):
        error = await refusal(server.inference.StreamGenerate(message, timeout=30))
        assert_too_many(error, "resume.outputs[1].token_ids", CONTEXT - 1, 4_000_000)


async def test_another_model_s_request_is_not_measured_by_this_one() -> None:
    message = request(model="nowhere", prompt=None, token_ids={"ids": [1] * CONTEXT})
    async with serving() as server:
        error = await refusal(server.inference.Generate(message))
    assert error.code() is grpc.StatusCode.NOT_FOUND


@pytest.mark.parametrize(("value", "limit"), GENERATION.values(), ids=list(GENERATION))
def test_as_many_as_there_may_be_are_not_too_many(value: dict[str, Any], limit: int) -> None:
    one = generation_pb2.GenerateRequest(**value).SerializeToString()
    most = generation_pb2.GenerateRequest.FromString(one * limit)
    assert excess(most, most_ids=CONTEXT - 1) is None
    assert excess(generation_pb2.GenerateRequest.FromString(one * (limit + 1)), most_ids=CONTEXT - 1) is not None


def test_everything_that_a_request_repeats_has_a_bound() -> None:
    repeating = {each.full_name: paths for each in requests() if (paths := set(repeated_paths(each)))}
    assert repeating == {kind.DESCRIPTOR.full_name: set(bounded_paths(fields)) for kind, fields in REPEATED.items()}
    assert repeating["inferwire.v1.GenerateRequest"] == {*GENERATION, "resume.outputs.token_ids"}


def requests() -> Iterator[Descriptor]:
    """What the methods of the contract take."""
    for file in (inference_pb2, model_pb2, operations_pb2):
        for service in file.DESCRIPTOR.services_by_name.values():
            yield from (method.input_type for method in service.methods)


def repeated_paths(message: Descriptor, prefix: str = "") -> Iterator[str]:
    for field in message.fields:
        path = f"{prefix}{field.name}"
        if field.is_repeated:
            yield path
        if field.message_type is not None:
            yield from repeated_paths(field.message_type, f"{path}.")


def bounded_paths(fields: Sequence[Repeated], prefix: str = "") -> Iterator[str]:
    for field in fields:
        yield f"{prefix}{field.path}"
        yield from bounded_paths(field.each, f"{prefix}{field.path}.")
