"""Logprobs: each token's own and the likeliest beside it, with the bytes they stand for, by both calls."""

from __future__ import annotations

import grpc
import pytest
from inferwire_server.engines.scripted import Plan, ScriptedOptions

from tests.answers import answered
from tests.serving import error_info, refusal, request, rest_of, serving

GREEDY = {"temperature": 0.0}


@pytest.mark.parametrize("top", [0, 3])
async def test_each_token_has_its_logprob_its_bytes_and_as_many_candidates_as_asked(top: int) -> None:
    async with serving(plans=lambda _: Plan(reply="né")) as server:
        answer = await answered(server, request(output={"top_logprobs": top, "token_ids": True}, sampling=GREEDY))
    assert [entry.token.token_id for entry in answer.logprobs] == answer.token_ids
    assert b"".join(entry.token.token_bytes for entry in answer.logprobs) == "né".encode()
    assert all(len(entry.top) == top for entry in answer.logprobs)
    values = [[candidate.logprob for candidate in entry.top] for entry in answer.logprobs]
    assert values == [sorted(row, reverse=True) for row in values]
    assert all(entry.token.logprob <= 0 for entry in answer.logprobs)


async def test_a_control_token_among_candidates_has_the_bytes_it_is_written_with() -> None:
    async with serving() as server:
        message = request(output={"prompt_top_logprobs": 0}, max_output_tokens=1, sampling=GREEDY)
        answer = await answered(server, message)
    assert answer.prompt_logprobs[0].token.token_bytes == b"<|bos|>"


async def test_bytes_of_the_tokens_are_the_text_where_the_seed_draws_broken_characters() -> None:
    wild = {"temperature": 2.0, "seed": 5}
    async with serving() as server:
        answer = await answered(server, request(output={"top_logprobs": 0}, sampling=wild, max_output_tokens=64))
    pieces = b"".join(entry.token.token_bytes for entry in answer.logprobs if entry.token.token_id < 256)
    assert pieces.decode("utf-8", "replace") == answer.text


async def test_tokens_held_back_for_a_stop_string_bring_their_logprobs_with_them() -> None:
    async with serving(plans=lambda _: Plan(reply="abcabd done")) as server:
        message = request(stop={"strings": ["abd"]}, output={"top_logprobs": 1, "token_ids": True}, sampling=GREEDY)
        answer = await answered(server, message)
    assert answer.text == "abc"
    assert bytes(answer.token_ids) == b"abcabd"
    assert [entry.token.token_id for entry in answer.logprobs] == answer.token_ids


async def test_prompt_logprobs_are_an_event_of_their_own_before_the_first_delta() -> None:
    async with serving() as server:
        stream = server.inference.StreamGenerate(request("hi", output={"prompt_top_logprobs": 2}, max_output_tokens=3))
        events = [event async for event in rest_of(stream)]
    kinds = [event.WhichOneof("event") for event in events]
    assert kinds[:3] == ["started", "prompt_logprobs", "delta"]
    assert kinds.count("prompt_logprobs") == 1
    first, *others = events[1].prompt_logprobs.tokens
    assert not first.token.HasField("logprob"), "nothing comes before the first token"
    assert b"".join(entry.token.token_bytes for entry in others) == b"hi"
    assert all(entry.token.HasField("logprob") and len(entry.top) == 2 for entry in others)
    assert not any(event.delta.logprobs for event in events)


@pytest.mark.parametrize("field", ["top_logprobs", "prompt_top_logprobs"])
async def test_more_candidates_than_the_engine_has_are_refused(field: str) -> None:
    async with serving(ScriptedOptions(max_top_logprobs=4)) as server:
        for call in (server.inference.Generate, server.inference.StreamGenerate):
            error = await refusal(call(request(output={field: 5})))
            assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
            info = error_info(error).metadata
            assert (info["field"], info["limit"], info["actual"]) == (f"output.{field}", "4", "5")
