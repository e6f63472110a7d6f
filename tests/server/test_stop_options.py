"""What ends an output: texts, ids, the model's own end, and what puts them off, by both calls."""

from __future__ import annotations

from typing import Any

import pytest
from inferwire_server.engines.scripted import Plan

from tests.answers import LENGTH, STOP, Answer, answered
from tests.serving import request, serving

END_ID = 257


async def said(reply: str | list[int], stop: dict[str, Any], **fields: Any) -> Answer:
    """What comes of a model that says this, by both calls."""
    async with serving(plans=lambda _: Plan(reply=reply)) as server:
        output = fields.pop("output", {}) | {"token_ids": True}
        return await answered(server, request(stop=stop, output=output, sampling={"temperature": 0.0}, **fields))


@pytest.mark.case("H09")
@pytest.mark.parametrize(("include_match", "text"), [(False, "one "), (True, "one two")])
async def test_the_matched_text_is_kept_only_when_asked_for(include_match: bool, text: str) -> None:
    answer = await said("one two three", {"strings": ["two"], "include_match": include_match})
    assert answer.text == text
    assert (answer.finished.reason, answer.finished.stop_string) == (STOP, "two")
    assert bytes(answer.token_ids) == b"one two", "the ids say what the model said, up to the match"
    assert answer.finished.output_tokens == answer.usage.output_tokens == 7


@pytest.mark.case("H09")
@pytest.mark.parametrize(
    ("reply", "stop", "text"),
    [
        ("one\n\ntwo", "\n\n", "one"),
        ("one  two", "  ", "one"),
        ("a\tb\r\nc", "\r\n", "a\tb"),
        ("grüße", "ü", "gr"),
        ("see \U0001f469\u200d\U0001f467 there", "\u200d", "see \U0001f469"),
        ("see \U0001f469\u200d\U0001f467 there", "\U0001f467", "see \U0001f469\u200d"),
        ("cafe\u0301 caf\u00e9!", "\u00e9", "cafe\u0301 caf"),
        ("नमस्ते दुनिया", "स्ते", "नम"),
    ],
    ids=["newlines", "spaces", "carriage return", "umlaut", "joiner", "emoji", "composed only", "Devanagari"],
)
async def test_white_space_and_characters_of_several_bytes_stop(reply: str, stop: str, text: str) -> None:
    answer = await said(reply, {"strings": [stop]}, max_output_tokens=100)
    assert (answer.text, answer.finished.stop_string) == (text, stop)


async def test_a_stop_string_is_passed_over_until_the_least_number_of_tokens() -> None:
    answer = await said("ab ab ab ab", {"strings": ["ab"], "min_output_tokens": 6})
    assert answer.text == "ab ab "
    assert answer.finished.output_tokens == 8


async def test_a_stop_string_that_ends_with_the_least_token_ends_the_output() -> None:
    answer = await said("ab ab ab", {"strings": ["ab"], "min_output_tokens": 5})
    assert (answer.text, answer.finished.output_tokens) == ("ab ", 5)


async def test_the_models_end_is_put_off_until_the_least_number_of_tokens() -> None:
    answer = await said("ab", {"min_output_tokens": 9}, max_output_tokens=16)
    assert answer.finished.output_tokens >= 9
    assert answer.text.startswith("ab")


async def test_a_stop_token_is_named_and_left_out() -> None:
    answer = await said("one two", {"token_ids": [ord("w"), ord("z")]})
    assert answer.text == "one t"
    assert (answer.finished.reason, answer.finished.stop_token_id) == (STOP, ord("w"))
    assert answer.finished.WhichOneof("stop_match") == "stop_token_id"


async def test_a_stop_token_is_put_off_until_the_least_number_of_tokens() -> None:
    answer = await said("aXbXc", {"token_ids": [ord("X")], "min_output_tokens": 3})
    assert len(answer.token_ids) >= 3
    assert answer.finished.output_tokens == len(answer.token_ids)


async def test_the_end_that_comes_first_is_the_one_reported() -> None:
    answer = await said("one two", {"strings": ["wo"], "token_ids": [ord("w")]})
    assert answer.finished.stop_token_id == ord("w")
    answer = await said("one two", {"strings": ["t"], "token_ids": [ord("w")]})
    assert answer.finished.stop_string == "t"


async def test_an_ignored_end_of_sequence_lets_the_output_go_on_to_its_length() -> None:
    answer = await said("the end", {"ignore_end_of_sequence": True}, max_output_tokens=24)
    assert (answer.finished.reason, answer.finished.output_tokens) == (LENGTH, 24)
    assert answer.finished.WhichOneof("stop_match") is None
    assert answer.text.startswith("the end")


async def test_the_models_end_is_named() -> None:
    answer = await said("the end", {})
    assert (answer.finished.reason, answer.finished.end_token_id) == (STOP, END_ID)


async def test_an_unfinished_character_at_the_length_is_given_out_as_a_replacement() -> None:
    answer = await said("aé", {"strings": ["zz"]}, max_output_tokens=2)
    assert answer.text == "a\ufffd"
    assert answer.finished.reason == LENGTH


async def test_the_beginning_of_a_stop_string_is_given_out_when_the_output_ends() -> None:
    answer = await said("done STO", {"strings": ["STOP"]})
    assert answer.text == "done STO"
    assert answer.finished.end_token_id == END_ID


async def test_control_tokens_are_text_only_when_asked_for() -> None:
    ids = [*b"a", 258, *b"b"]
    assert (await said(ids, {})).text == "ab"
    assert (await said(ids, {}, output={"skip_special_tokens": False})).text == "a<|im_start|>b"


async def test_a_stop_string_in_the_prompt_ends_nothing() -> None:
    answer = await said("fine", {"strings": ["story"]}, prompt="tell a story")
    assert answer.text == "fine"
