"""Exactly one end, with the same reason and the same counts in a stream and in one answer, for prompts and chats."""

from __future__ import annotations

from typing import Any

import grpc
import pytest
from inferwire.v1 import generation_pb2, inference_pb2
from inferwire_server.domain.errors import EngineDown
from inferwire_server.engines.scripted import Fail, Plan, PlanBook, ScriptedOptions

from tests.serving import MODEL, Serving, error_info, refusal, request, rest_of, serving

STOP, LENGTH = generation_pb2.FINISH_REASON_STOP, generation_pb2.FINISH_REASON_LENGTH
PLANS = PlanBook(
    (
        ("end", Plan(reply="the end")),
        ("stop", Plan(reply="one two three four")),
        ("fail", Plan(mishap=Fail(lambda: EngineDown("lost", started=True), after=3))),
    )
)

pytestmark = pytest.mark.case("H10")


def asked(content: str, as_chat: bool, **fields: Any) -> generation_pb2.GenerateRequest:
    """The same content as a prompt or as a chat."""
    if not as_chat:
        return request(content, **fields)
    messages = [{"role": "system", "text": "Be brief."}, {"role": "user", "text": content}]
    return request(prompt=None, chat={"messages": messages}, **fields)


async def tokens_of(server: Serving, message: generation_pb2.GenerateRequest) -> int:
    """What Tokenize counts for the same input."""
    counted = inference_pb2.TokenizeRequest(model=MODEL)
    if message.HasField("chat"):
        counted.chat.CopyFrom(message.chat)
    else:
        counted.prompt = message.prompt
    return (await server.inference.Tokenize(counted)).token_count


as_prompt_and_chat = pytest.mark.parametrize("as_chat", [False, True], ids=["prompt", "chat"])


@as_prompt_and_chat
@pytest.mark.parametrize(
    ("content", "fields", "reason", "text", "tokens"),
    [
        ("story", {"max_output_tokens": 1}, LENGTH, None, 1),
        ("story", {"max_output_tokens": 5}, LENGTH, None, 5),
        ("the end please", {}, STOP, "the end", 7),
        ("stop please", {"stop": {"strings": ["three"]}}, STOP, "one two ", 13),
    ],
    ids=["max 1", "max 5", "natural end", "stop string"],
)
async def test_one_end_with_reason_and_counts(
    as_chat: bool, content: str, fields: dict[str, Any], reason: int, text: str | None, tokens: int
) -> None:
    message = asked(content, as_chat, **fields)
    async with serving(plans=PLANS) as server:
        events = [event async for event in server.inference.StreamGenerate(message)]
        unary = await server.inference.Generate(message)
        expected_prompt = await tokens_of(server, message)
    kinds = [event.WhichOneof("event") for event in events]
    assert (kinds.count("finished"), kinds.count("completed"), kinds[-1]) == (1, 1, "completed")
    streamed, usage = events[-2].finished, events[-1].completed.usage
    assert streamed == unary.outputs[0].finished
    assert (streamed.reason, streamed.output_tokens) == (reason, tokens)
    assert (usage.prompt_tokens, usage.output_tokens) == (expected_prompt, tokens)
    assert (unary.usage.prompt_tokens, unary.usage.output_tokens) == (expected_prompt, tokens)
    assert text is None or unary.outputs[0].text == text == "".join(event.delta.text for event in events)


@as_prompt_and_chat
async def test_the_end_token_is_named_and_its_text_is_not_in_the_output(as_chat: bool) -> None:
    async with serving(plans=PLANS) as server:
        message = asked("the end please", as_chat, output={"skip_special_tokens": False, "token_ids": True})
        output = (await server.inference.Generate(message)).outputs[0]
    assert output.finished.WhichOneof("stop_match") == "end_token_id"
    assert output.text == "the end"
    assert output.finished.end_token_id not in output.token_ids


@as_prompt_and_chat
async def test_a_stream_that_fails_has_no_end_but_its_status(as_chat: bool) -> None:
    async with serving(plans=PLANS) as server:
        stream: Any = server.inference.StreamGenerate(asked("fail please", as_chat))
        kinds: list[str] = []
        error = await refusal(noted(stream, kinds))
        unary = await refusal(server.inference.Generate(asked("fail please", as_chat)))
    assert "completed" not in kinds
    assert "finished" not in kinds
    assert error.code() is unary.code() is grpc.StatusCode.UNAVAILABLE
    assert error_info(error).metadata["started"] == error_info(unary).metadata["started"] == "true"


async def noted(stream: Any, kinds: list[str]) -> Any:
    async for event in stream:
        kinds.append(event.WhichOneof("event"))
        yield event


@as_prompt_and_chat
async def test_a_cancelled_call_has_no_end_but_its_status(as_chat: bool) -> None:
    async with serving(ScriptedOptions(step_base_s=0.005)) as server:
        stream: Any = server.inference.StreamGenerate(asked("story", as_chat, max_output_tokens=4000))
        await stream.read()
        stream.cancel()
        assert await stream.code() is grpc.StatusCode.CANCELLED


async def test_stop_by_a_token_id_names_the_id() -> None:
    async with serving(plans=PLANS) as server:
        message = request("stop please", stop={"token_ids": [ord("w")]}, output={"token_ids": True})
        output = (await server.inference.Generate(message)).outputs[0]
    assert output.finished.stop_token_id == ord("w")
    assert (output.finished.reason, output.text) == (STOP, "one t")
    assert ord("w") not in output.token_ids


async def test_the_end_of_a_grammar_is_a_stop() -> None:
    async with serving() as server:
        message = request(structured_output={"choices": {"texts": ["yes"]}})
        output = (await server.inference.Generate(message)).outputs[0]
    assert (output.text, output.finished.reason) == ("yes", STOP)


@pytest.mark.parametrize("stopped", [False, True])
async def test_cached_tokens_are_reported_however_the_output_ends(stopped: bool) -> None:
    async with serving(plans=PLANS) as server:
        prompt = "stop " + "x" * 400
        message = request(prompt, stop={"strings": ["three"] if stopped else []})
        first = await server.inference.Generate(message)
        second = await server.inference.Generate(message)
    assert first.usage.HasField("cached_tokens")
    assert first.usage.cached_tokens == 0
    assert second.usage.cached_tokens >= 384


async def test_times_are_reported_once_and_in_order() -> None:
    async with serving() as server:
        stream: Any = server.inference.StreamGenerate(request())
        events = [event async for event in rest_of(stream)]
    timings = events[-1].completed.timings
    queue, first, total = (
        getattr(timings, name).ToTimedelta() for name in ("queue_time", "first_token_time", "total_time")
    )
    assert queue <= first <= total
