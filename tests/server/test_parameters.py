"""Every parameter at and beyond its bounds: a defined answer or a refusal by the field's name; nobody else is hurt."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from inferwire.v1 import generation_pb2
from inferwire_server.engines.scripted import ScriptedOptions

from tests.neighbour import neighbour
from tests.serving import Serving, bad_request, error_info, refusal, request, retry_hint_ms, serving

CONTEXT = 512
SMALL = ScriptedOptions(step_base_s=0.0005, max_context_tokens=CONTEXT)
LENGTH = generation_pb2.FINISH_REASON_LENGTH
TURN = {"role": "user", "text": "hi"}

pytestmark = pytest.mark.case("H12")

SAMPLING: list[tuple[str, Any]] = [
    ("temperature", [-0.1, 100.1, math.nan, math.inf, -math.inf]),
    ("top_p", [0.0, -0.5, 1.0001, math.nan, math.inf]),
    ("min_p", [1.0, -0.1, math.nan]),
    ("repetition_penalty", [0.0, -1.0, 10.1, math.nan, math.inf]),
    ("presence_penalty", [-2.1, 2.1, math.nan]),
    ("frequency_penalty", [-2.1, 2.1, math.nan, -math.inf]),
]

REFUSED: list[tuple[str, dict[str, Any]]] = [
    *((f"sampling.{name}", {"sampling": {name: value}}) for name, values in SAMPLING for value in values),
    ("sampling.logit_bias[0].token_id", {"sampling": {"logit_bias": [{"token_id": 260}]}}),
    ("sampling.logit_bias[0].bias", {"sampling": {"logit_bias": [{"token_id": 1, "bias": math.nan}]}}),
    ("sampling.logit_bias[1].bias", {"sampling": {"logit_bias": [{}, {"token_id": 1, "bias": 100.5}]}}),
    ("sampling.logit_bias[1].token_id", {"sampling": {"logit_bias": [{"token_id": 7}, {"token_id": 7}]}}),
    ("sampling.logit_bias", {"sampling": {"logit_bias": [{"token_id": n} for n in range(1025)]}}),
    ("max_output_tokens", {"max_output_tokens": 0}),
    ("max_output_tokens", {"max_output_tokens": 2**31 - 1}),
    ("max_output_tokens", {"max_output_tokens": -1 % 2**32}),
    ("max_output_tokens", {"max_output_tokens": CONTEXT - 1}),
    ("output.count", {"output": {"count": 0}}),
    ("output.count", {"output": {"count": -1 % 2**32}}),
    ("output.count", {"output": {"count": 10_000}}),
    ("output.top_logprobs", {"output": {"top_logprobs": 21}}),
    ("output.prompt_top_logprobs", {"output": {"prompt_top_logprobs": 21}}),
    ("stop.strings[0]", {"stop": {"strings": [""]}}),
    ("stop.strings", {"stop": {"strings": ["x"] * 1000}}),
    ("stop.strings[1]", {"stop": {"strings": ["x", "y" * 10_000]}}),
    ("stop.token_ids", {"stop": {"token_ids": [1] * 65}}),
    ("stop.token_ids[0]", {"stop": {"token_ids": [260]}}),
    ("stop.min_output_tokens", {"stop": {"min_output_tokens": 17}}),
    ("input", {"prompt": None}),
    ("prompt", {"prompt": ""}),
    ("prompt", {"prompt": "x" * (CONTEXT - 1)}),
    ("prompt", {"prompt": "x" * CONTEXT}),
    ("token_ids.ids", {"prompt": None, "token_ids": {"ids": []}}),
    ("token_ids.ids[2]", {"prompt": None, "token_ids": {"ids": [1, 2, 260]}}),
    ("token_ids.ids", {"prompt": None, "token_ids": {"ids": [1] * CONTEXT}}),
    ("chat.messages", {"prompt": None, "chat": {"messages": []}}),
    ("chat.messages", {"prompt": None, "chat": {"messages": [TURN] * 1025}}),
    ("chat.messages[0].role", {"prompt": None, "chat": {"messages": [{"role": "wizard", "text": "hi"}]}}),
    ("chat.messages[1].content", {"prompt": None, "chat": {"messages": [TURN, {"role": "user"}]}}),
    (
        "chat.template_variables_json",
        {"prompt": None, "chat": {"messages": [TURN], "template_variables_json": "[1]"}},
    ),
    (
        "chat.template_variables_json",
        {"prompt": None, "chat": {"messages": [TURN], "template_variables_json": '{"a": "%s"}' % ("x" * 65536)}},
    ),
    ("request_id", {"request_id": "x" * 129}),
    ("request_id", {"request_id": "not an id"}),
    ("cache.salt", {"cache": {"salt": "x" * 129}}),
    ("scheduling.max_queue_time", {"scheduling": {"max_queue_time": {}}}),
    ("scheduling.max_queue_time", {"scheduling": {"max_queue_time": {"seconds": -1}}}),
    ("scheduling.max_queue_time", {"scheduling": {"max_queue_time": {"seconds": 10**9}}}),
    ("scheduling.max_queue_time", {"scheduling": {"max_queue_time": {"seconds": 1, "nanos": -5}}}),
    ("scheduling.first_token_target", {"scheduling": {"first_token_target": {"nanos": 2 * 10**9}}}),
    ("scheduling.first_token_target", {"scheduling": {"first_token_target": {}}}),
    ("scheduling.detach_grace", {"scheduling": {"detach_grace": {"seconds": 301}}}),
    ("scheduling.detach_grace", {"scheduling": {"detach_grace": {"seconds": -1}}}),
    ("structured_output.format", {"structured_output": {}}),
    ("structured_output.json_schema", {"structured_output": {"json_schema": ""}}),
    ("structured_output.json_schema", {"structured_output": {"json_schema": "{"}}),
    ("structured_output.json_schema", {"structured_output": {"json_schema": " " * 65537}}),
    ("structured_output.regex", {"structured_output": {"regex": "("}}),
    ("structured_output.regex", {"structured_output": {"regex": "x" * 8193}}),
    ("structured_output.ebnf", {"structured_output": {"ebnf": "x" * 65537}}),
    ("structured_output.choices.texts", {"structured_output": {"choices": {}}}),
    ("structured_output.choices.texts[1]", {"structured_output": {"choices": {"texts": ["a", ""]}}}),
    ("structured_output.choices.texts[1]", {"structured_output": {"choices": {"texts": ["a", "a"]}}}),
    ("structured_output.choices.texts[0]", {"structured_output": {"choices": {"texts": ["a" * 1025]}}}),
    ("structured_output.choices.texts", {"structured_output": {"choices": {"texts": [str(n) for n in range(257)]}}}),
    ("model", {"model": ""}),
]

STREAM_ONLY: list[tuple[str, dict[str, Any]]] = [
    ("progress_interval", {"progress_interval": {"nanos": 5 * 10**7}}),
    ("progress_interval", {"progress_interval": {"seconds": 61}}),
    ("progress_interval", {"progress_interval": {"seconds": -1}}),
    ("resume.prompt_digest", {"resume": {}}),
]


@pytest.fixture
async def server() -> AsyncIterator[Serving]:
    async with serving(SMALL) as server:
        yield server


def rows(table: list[tuple[str, dict[str, Any]]]) -> list[Any]:
    return [pytest.param(field, fields, id=f"{number}-{field}") for number, (field, fields) in enumerate(table)]


async def assert_refused(call: Any, field: str) -> None:
    error = await refusal(call)
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT, error.details()
    assert [violation.field for violation in bad_request(error).field_violations] == [field]
    assert (error_info(error).reason, error_info(error).metadata["started"]) == ("INVALID_FIELD", "false")
    assert retry_hint_ms(error) is None


@pytest.mark.parametrize(("field", "fields"), rows(REFUSED))
async def test_what_is_out_of_bounds_is_refused_by_its_name(server: Serving, field: str, fields: Any) -> None:
    async with neighbour(server):
        await assert_refused(server.inference.Generate(request(**fields), timeout=20), field)
        await assert_refused(server.inference.StreamGenerate(request(**fields), timeout=20), field)
    assert await server.is_alive()
    assert server.outcomes()["invalid_request"] == 2


@pytest.mark.parametrize(("field", "fields"), rows(STREAM_ONLY))
async def test_what_only_a_stream_has_is_checked_there_and_refused_elsewhere(
    server: Serving, field: str, fields: Any
) -> None:
    async with neighbour(server):
        await assert_refused(server.inference.StreamGenerate(request(**fields), timeout=20), field)
        await assert_refused(server.inference.Generate(request(**fields), timeout=20), field.split(".")[0])
    assert await server.is_alive()


async def both(server: Serving, message: generation_pb2.GenerateRequest) -> generation_pb2.Output:
    """The one output that Generate and StreamGenerate agree on, beside a neighbour."""
    async with neighbour(server):
        unary = (await server.inference.Generate(message, timeout=20)).outputs[0]
        events = [event async for event in server.inference.StreamGenerate(message, timeout=20)]
    assert "".join(event.delta.text for event in events) == unary.text
    assert events[-2].finished == unary.finished
    assert await server.is_alive()
    return unary


@pytest.mark.parametrize("temperature", [0.0, -0.0, 1e-30, 1e-10])
async def test_a_temperature_of_nearly_nothing_is_greedy(server: Serving, temperature: float) -> None:
    greedy = await both(server, request(sampling={"temperature": 0.0}))
    assert (await both(server, request(sampling={"temperature": temperature, "seed": 3}))).text == greedy.text


@pytest.mark.parametrize("top_k", [0, 260, 2**31 - 1, -2 % 2**32])
async def test_a_top_k_as_large_as_the_vocabulary_and_zero_mean_all_of_it(server: Serving, top_k: int) -> None:
    everything = await both(server, request(sampling={"temperature": 2.0, "seed": 1}))
    assert (
        await both(server, request(sampling={"temperature": 2.0, "seed": 1, "top_k": top_k}))
    ).text == everything.text


async def test_one_candidate_is_greedy_whatever_the_temperature(server: Serving) -> None:
    greedy = await both(server, request(sampling={"temperature": 0.0}))
    assert (await both(server, request(sampling={"temperature": 2.0, "top_k": 1}))).text == greedy.text


@pytest.mark.parametrize(
    "sampling",
    [
        {"temperature": 100.0, "seed": 1},
        {"top_p": 1.0, "seed": 1},
        {"top_p": 1e-30, "seed": 1},
        {"min_p": 0.0, "seed": 1},
        {"repetition_penalty": 10.0, "seed": 1},
        {"presence_penalty": -2.0, "frequency_penalty": 2.0, "seed": 1},
        {"seed": 0},
        {"seed": 2**32 - 1},
        {"logit_bias": [{"token_id": n, "bias": (-1) ** n * 100.0} for n in range(256)], "seed": 1},
    ],
    ids=str,
)
async def test_bounds_themselves_are_served(server: Serving, sampling: dict[str, Any]) -> None:
    assert (await both(server, request(sampling=sampling))).finished.output_tokens == 16


@pytest.mark.parametrize(("prompt_tokens", "output_tokens"), [(CONTEXT - 1, 1), (CONTEXT - 2, 2), (13, CONTEXT - 13)])
async def test_an_unset_length_fills_the_room_that_is_left(
    server: Serving, prompt_tokens: int, output_tokens: int
) -> None:
    unset = request("x" * (prompt_tokens - 1), max_output_tokens=None, sampling={"seed": 1})
    output = await both(server, unset)
    assert (output.finished.reason, output.finished.output_tokens) == (LENGTH, output_tokens)


async def test_a_length_beside_its_prompt_is_told_how_much_room_there_is(server: Serving) -> None:
    error = await refusal(server.inference.Generate(request("x" * 400, max_output_tokens=200)))
    assert error_info(error).metadata["limit"] == str(CONTEXT - 401)
    assert error_info(error).metadata["actual"] == "200"


async def test_an_unknown_priority_is_the_standard_one(server: Serving) -> None:
    assert (await both(server, request(scheduling={"priority": 17}, sampling={"seed": 1}))).text


async def test_an_unknown_chat_role_is_told_which_there_are(server: Serving) -> None:
    wizard = request(prompt=None, chat={"messages": [{"role": "wizard", "text": "hi"}]})
    error = await refusal(server.inference.Generate(wizard))
    assert "assistant" in str(error.details())
