"""Stop strings across the borders of tokens and messages: one cut everywhere, and nothing of the stop is ever sent."""

from __future__ import annotations

import random
from typing import Any

import pytest
from inferwire.v1 import generation_pb2
from inferwire_server.engines.scripted import Echo, Plan, PlanBook, ScriptedOptions

from tests.polling import until
from tests.serving import Serving, request, serving

GREEDY = {"temperature": 0.0}
WIDE = PlanBook(otherwise=Plan(reply=Echo(after="Say: ")))
SAID = "le café 龜𠮷 👩‍👩‍👧 नमस्ते and   then\n\n\tsome more words to stop at"


async def deltas_of(server: Serving, message: generation_pb2.GenerateRequest) -> tuple[list[Any], Any]:
    events = [event async for event in server.inference.StreamGenerate(message)]
    return [event.delta for event in events if event.HasField("delta")], events[-2].finished


async def assert_stops_at(server: Serving, fields: dict[str, Any], text: str, tokens: int, stop: str) -> None:
    """Stream and unary answer end exactly before the stop string."""
    expected = text[: text.find(stop)]
    message = request(**fields, stop={"strings": [stop]})
    deltas, finished = await deltas_of(server, message)
    output = (await server.inference.Generate(message)).outputs[0]
    assert "".join(delta.text for delta in deltas) == output.text == expected
    assert finished == output.finished
    assert (finished.reason, finished.stop_string) == (generation_pb2.FINISH_REASON_STOP, stop)
    up_to_match = len(text[: text.find(stop) + len(stop)].encode())
    assert finished.output_tokens <= min(tokens, up_to_match + 1)


def straddling(text: str, borders: list[int], draw: random.Random) -> str:
    """A piece of the text, 2 to 12 characters long, with the border of two messages inside."""
    border = draw.choice(borders)
    start = draw.randint(max(0, border - 6), border - 1)
    end = draw.randint(border + 1, min(len(text), start + 12))
    return text[start:end]


@pytest.mark.case("H09")
@pytest.mark.parametrize(
    ("plans", "fields"),
    [
        (None, {"prompt": "tell a story", "sampling": GREEDY, "max_output_tokens": 120}),
        (WIDE, {"prompt": "Say: " + SAID, "sampling": GREEDY, "max_output_tokens": 200}),
    ],
    ids=["words", "wide characters"],
)
async def test_twenty_random_stops_over_message_borders(plans: Any, fields: dict[str, Any]) -> None:
    draw = random.Random(9)
    async with serving(ScriptedOptions(step_base_s=0.0005), plans=plans) as server:
        deltas, finished = await deltas_of(server, request(**fields))
        text = "".join(delta.text for delta in deltas)
        borders = [len("".join(delta.text for delta in deltas[:n])) for n in range(1, len(deltas))]
        for _ in range(20):
            stop = straddling(text, borders, draw)
            await assert_stops_at(server, fields, text, finished.output_tokens, stop)
        await until(lambda: server.is_quiet)


@pytest.mark.case("H09")
@pytest.mark.parametrize("include_match", [False, True])
async def test_no_beginning_of_the_stop_was_ever_sent(include_match: bool) -> None:
    plans = PlanBook(otherwise=Plan(reply="aab aabaab aabaac the rest"))
    async with serving(plans=plans) as server:
        stop = {"strings": ["aabaac"], "include_match": include_match}
        deltas, _ = await deltas_of(server, request(stop=stop, output={"token_ids": True}, max_output_tokens=40))
    sent = ""
    for delta in deltas:
        sent += delta.text
        assert "aab aabaab aabaac".startswith(sent)
    assert sent == "aab aabaab aabaac"[: None if include_match else -6]
    assert sum(delta.token_count for delta in deltas) == len("aab aabaab aabaac")


@pytest.mark.case("H09")
async def test_of_several_stops_the_one_that_is_complete_first_wins() -> None:
    plans = PlanBook(otherwise=Plan(reply="one two three four"))
    async with serving(plans=plans) as server:
        message = request(stop={"strings": ["three four", "wo", "two three", "o t"]})
        output = (await server.inference.Generate(message)).outputs[0]
    assert (output.finished.stop_string, output.text) == ("wo", "one t")


@pytest.mark.case("H09")
async def test_what_was_held_back_comes_when_the_output_ends_by_its_length() -> None:
    plans = PlanBook(otherwise=Plan(reply="half of the stop str"))
    async with serving(plans=plans) as server:
        message = request(stop={"strings": ["stop string"]}, max_output_tokens=20)
        deltas, finished = await deltas_of(server, message)
    assert "".join(delta.text for delta in deltas) == "half of the stop str"
    assert finished.reason == generation_pb2.FINISH_REASON_LENGTH


@pytest.mark.case("H09")
async def test_a_stop_string_in_the_prompt_stops_nothing() -> None:
    plans = PlanBook(otherwise=Plan(reply="fine"))
    async with serving(plans=plans) as server:
        output = (await server.inference.Generate(request("STOP here", stop={"strings": ["STOP", "refi"]}))).outputs[0]
    assert output.text == "fine"


@pytest.mark.case("H09")
async def test_a_stop_before_the_least_number_of_tokens_is_passed_over() -> None:
    plans = PlanBook(otherwise=Plan(reply="a stop and a stop"))
    async with serving(plans=plans) as server:
        message = request(stop={"strings": ["stop"], "min_output_tokens": 10}, max_output_tokens=40)
        output = (await server.inference.Generate(message)).outputs[0]
    assert output.text == "a stop and a "
