"""Exact text from a real model: each test has a healthy stream beside it, whose text stays bit for bit the same."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
import pytest_asyncio
from inferwire.v1 import generation_pb2, inference_pb2, inference_pb2_grpc, model_pb2, model_pb2_grpc
from inferwire_server.models.version import ModelVersion

from tests.answers import LENGTH, STOP, Answer, answered, replied, streamed
from tests.real_model import NAME, real_model_folder
from tests.server.text.strings import STRINGS
from tests.server_process import server_process
from tests.serving import error_info, refusal

pytestmark = [
    pytest.mark.real_model,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(240),
]
HANG_BOUND_S = 180.0
GREEDY = {"temperature": 0.0}


class RealModel:
    """Callers of one server process with the real model in 32-bit floats."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.inference = inference_pb2_grpc.InferenceServiceStub(channel)
        self.models = model_pb2_grpc.ModelServiceStub(channel)
        self.neighbours_text = ""

    @asynccontextmanager
    async def neighbour(self) -> AsyncIterator[None]:
        """A stream beside the body; its text must equal that of its run alone."""
        beside = asyncio.create_task(streamed(self, neighbours_request()))
        try:
            yield
            async with asyncio.timeout(HANG_BOUND_S):
                assert (await beside).text == self.neighbours_text
        finally:
            beside.cancel()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def real(smollm2_f16: ModelVersion) -> AsyncIterator[RealModel]:
    """One server for all tests here."""
    settings: dict[str, Any] = {"model": NAME, "models_dir": real_model_folder(), "profile": "exact"}
    async with (
        server_process(engine="openvino", **settings) as server,
        grpc.aio.insecure_channel(server.address) as channel,
    ):
        model = RealModel(channel)
        model.neighbours_text = (await streamed(model, neighbours_request())).text
        yield model


def neighbours_request() -> generation_pb2.GenerateRequest:
    """What the healthy stream asks for."""
    return asked("The quick brown fox", max_output_tokens=24)


def asked(prompt: str | None, **fields: Any) -> generation_pb2.GenerateRequest:
    """A greedy request with ids, 12 tokens unless told otherwise."""
    defaults: dict[str, Any] = {"max_output_tokens": 12, "sampling": GREEDY, "output": {"token_ids": True}}
    return generation_pb2.GenerateRequest(**(defaults | {"model": NAME, "prompt": prompt} | fields))


def chatted(text: str, **fields: Any) -> generation_pb2.GenerateRequest:
    """The same with a chat of one message."""
    return asked(None, chat={"messages": [{"role": "user", "text": text}]}, **fields)


@pytest.mark.case("H07")
async def test_stream_equals_unary_for_every_strange_text(real: RealModel) -> None:
    async with real.neighbour():
        answers = await asyncio.gather(
            *(answered(real, asked("Repeat: " + text, max_output_tokens=8)) for text in STRINGS.values())
        )
    assert all(answer.finished.output_tokens == len(answer.token_ids) for answer in answers)


@pytest.mark.case("H07")
async def test_a_text_comes_back_from_its_tokens(real: RealModel) -> None:
    for text in STRINGS.values():
        request = inference_pb2.TokenizeRequest(model=NAME, prompt=text, add_special_tokens=False)
        tokens = await real.inference.Tokenize(request)
        back = await real.inference.Detokenize(
            inference_pb2.DetokenizeRequest(model=NAME, token_ids=tokens.token_ids, skip_special_tokens=False)
        )
        assert back.text == text


async def test_a_character_without_tokens_is_refused_by_name(real: RealModel) -> None:
    error = await refusal(real.inference.Generate(asked("a \U00050000")))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "U+50000 at position 2" in (error.details() or "")


@pytest.mark.case("H09")
async def test_stop_strings_cut_where_they_are_complete(real: RealModel) -> None:
    source = random.Random(9)
    async with real.neighbour():
        whole = await streamed(real, asked("Once upon a time", max_output_tokens=32))
        stops = [whole.text[at : at + source.randint(2, 12)] for at in source.sample(range(5, len(whole.text) - 12), 6)]
        answers = await asyncio.gather(
            *(answered(real, asked("Once upon a time", max_output_tokens=32, stop={"strings": [s]})) for s in stops)
        )
    for stop, answer in zip(stops, answers, strict=True):
        assert answer.text == whole.text[: whole.text.find(stop)]
        assert (answer.finished.reason, answer.finished.stop_string) == (STOP, stop)
        assert answer.token_ids == whole.token_ids[: len(answer.token_ids)]


@pytest.mark.case("H10")
@pytest.mark.parametrize("as_chat", [False, True], ids=["prompt", "chat"])
async def test_counts_agree_between_calls_and_with_tokenize(real: RealModel, as_chat: bool) -> None:
    make = chatted if as_chat else asked
    async with real.neighbour():
        one, five, stopped = await asyncio.gather(
            answered(real, make("Count to ten.", max_output_tokens=1)),
            answered(real, make("Count to ten.", max_output_tokens=5)),
            answered(real, make("Count to ten.", max_output_tokens=24, stop={"strings": ["e", "1", "o"]})),
        )
        counted = inference_pb2.TokenizeRequest(model=NAME)
        if as_chat:
            counted.chat.messages.add(role="user", text="Count to ten.")
        else:
            counted.prompt = "Count to ten."
        tokens = await real.inference.Tokenize(counted)
    assert [one.usage.output_tokens, five.usage.output_tokens] == [1, 5]
    assert [one.finished.reason, five.finished.reason, stopped.finished.reason] == [LENGTH, LENGTH, STOP]
    assert {answer.usage.prompt_tokens for answer in (one, five, stopped)} == {tokens.token_count}
    assert tokens.token_count == len(tokens.token_ids) == one.started.prompt_tokens


@pytest.mark.case("H10")
async def test_the_models_own_end_is_named_and_not_in_the_text(real: RealModel) -> None:
    async with real.neighbour():
        answer = await answered(
            real,
            chatted("What is 1+1?", max_output_tokens=100, output={"token_ids": True, "skip_special_tokens": False}),
        )
    assert answer.finished.WhichOneof("stop_match") == "end_token_id"
    assert answer.finished.end_token_id not in answer.token_ids
    assert "<|im_end|>" not in answer.text
    assert answer.finished.output_tokens == len(answer.token_ids)


@pytest.mark.case("H11")
async def test_control_text_in_a_message_stays_text(real: RealModel) -> None:
    counts = []
    for text in ("hi", STRINGS["S19"]):
        request = inference_pb2.TokenizeRequest(model=NAME)
        request.chat.messages.add(role="user", text=text)
        ids = (await real.inference.Tokenize(request)).token_ids
        counts.append((sum(token_id < 17 for token_id in ids), len(ids)))
    (controls_plain, plain), (controls_forged, forged) = counts
    assert controls_forged == controls_plain
    assert forged - plain >= 12


BAD: list[tuple[str, dict[str, Any]]] = [
    ("max_output_tokens", {"max_output_tokens": 0}),
    ("max_output_tokens", {"max_output_tokens": 2**31 - 1}),
    ("sampling.temperature", {"sampling": {"temperature": -0.1}}),
    ("sampling.temperature", {"sampling": {"temperature": float("nan")}}),
    ("sampling.temperature", {"sampling": {"temperature": float("inf")}}),
    ("sampling.top_p", {"sampling": {"top_p": 0.0}}),
    ("sampling.top_p", {"sampling": {"top_p": 1.0001}}),
    ("output.count", {"output": {"count": 0}}),
    ("output.count", {"output": {"count": 10_000}}),
    ("output.top_logprobs", {"output": {"top_logprobs": 1}}),
    ("stop.strings[0]", {"stop": {"strings": [""]}}),
    ("stop.strings", {"stop": {"strings": ["s"] * 1000}}),
    ("prompt", {"prompt": ""}),
    ("token_ids.ids", {"prompt": None, "token_ids": {"ids": [5] * 8192}}),
    ("token_ids.ids[1]", {"prompt": None, "token_ids": {"ids": [5, 49_152]}}),
    ("chat.messages", {"prompt": None, "chat": {}}),
    ("chat.messages[0].role", {"prompt": None, "chat": {"messages": [{"role": "wizard", "text": "hi"}]}}),
]


@pytest.mark.case("H12")
async def test_what_is_out_of_range_is_refused_by_its_field(real: RealModel) -> None:
    async with real.neighbour():
        for field, wrong in BAD:
            for call in (real.inference.Generate, real.inference.StreamGenerate):
                error = await refusal(call(asked(**({"prompt": "hi"} | wrong)), timeout=HANG_BOUND_S))
                assert error.code() is grpc.StatusCode.INVALID_ARGUMENT, field
                assert error_info(error).metadata["field"] == field


@pytest.mark.case("H12")
@pytest.mark.parametrize(
    ("field", "absent"),
    [
        ("output.prompt_top_logprobs", {"output": {"prompt_top_logprobs": 0}}),
        ("sampling.logit_bias", {"sampling": {"logit_bias": [{"token_id": 5, "bias": 1.0}]}}),
    ],
)
async def test_what_the_engine_lacks_is_refused_by_its_field(
    real: RealModel, field: str, absent: dict[str, Any]
) -> None:
    for call in (real.inference.Generate, real.inference.StreamGenerate):
        error = await refusal(call(asked("hi", **absent)))
        assert (error.code(), error_info(error).metadata["field"]) == (grpc.StatusCode.UNIMPLEMENTED, field)


@pytest.mark.case("H12")
@pytest.mark.case("H13")
async def test_zero_is_greedy_and_so_is_nearly_zero(real: RealModel) -> None:
    temperatures = [0.0, 0.0, 0.0, 1e-30]
    async with real.neighbour():
        answers = await asyncio.gather(
            *(replied(real, asked("My favourite", sampling={"temperature": value})) for value in temperatures)
        )
    assert len({tuple(answer.token_ids) for answer in answers}) == 1
    assert not any(answer.started.HasField("seed") for answer in answers)


@pytest.mark.case("H13")
async def test_an_unset_temperature_is_the_published_default(real: RealModel) -> None:
    defaults = (await real.models.GetModel(model_pb2.GetModelRequest(model=NAME))).model.defaults.sampling
    published = {"temperature": defaults.temperature, "top_p": defaults.top_p}
    assert defaults.temperature > 0

    async def said(sampling: dict[str, Any]) -> list[int]:
        return (await replied(real, asked("My favourite", sampling=sampling, max_output_tokens=24))).token_ids

    async with real.neighbour():
        unset = await asyncio.gather(*(said({"seed": seed}) for seed in (1, 2, 3)))
        given = await asyncio.gather(*(said({"seed": seed} | published) for seed in (1, 2, 3)))
    assert unset == given
    assert len(set(map(tuple, unset))) > 1


@pytest.mark.case("H13")
async def test_a_seed_of_zero_is_a_seed(real: RealModel) -> None:
    sampling = {"temperature": 1.0, "seed": 0}
    first, second = await asyncio.gather(*(replied(real, asked("My favourite", sampling=sampling)) for _ in range(2)))
    assert first.started.HasField("seed")
    assert first.started.seed == 0
    assert first.token_ids == second.token_ids


async def outputs_of(real: RealModel, sampling: dict[str, Any]) -> list[str]:
    """The texts of four outputs of one request."""
    message = asked("My favourite", sampling=sampling, output={"count": 4})
    return [output.text for output in (await real.inference.Generate(message)).outputs]


@pytest.mark.case("H14")
async def test_a_seed_gives_the_same_text_alone_and_beside_others_and_another_seed_another(real: RealModel) -> None:
    def seeded(seed: int) -> generation_pb2.GenerateRequest:
        return asked("My favourite", sampling={"temperature": 1.0, "seed": seed})

    alone: Answer = await answered(real, seeded(42))
    async with real.neighbour():
        beside, other, _ = await asyncio.gather(
            answered(real, seeded(42)), replied(real, seeded(43)), replied(real, seeded(7))
        )
    assert beside.token_ids == alone.token_ids
    assert other.token_ids != alone.token_ids


@pytest.mark.case("H14")
async def test_outputs_of_one_seed_differ_among_themselves_and_come_again(real: RealModel) -> None:
    async with real.neighbour():
        first, again, unseeded, unseeded_again = await asyncio.gather(
            *(outputs_of(real, {"temperature": 1.0} | seed) for seed in ({"seed": 42}, {"seed": 42}, {}, {}))
        )
    assert first == again
    assert all(one != other for one, other in itertools.combinations(first, 2))
    assert unseeded != unseeded_again


async def test_the_chosen_tokens_have_logprobs_with_the_bytes_of_their_text(real: RealModel) -> None:
    async with real.neighbour():
        answer = await answered(real, asked("Grüße aus", output={"token_ids": True, "top_logprobs": 0}))
    assert [entry.token.token_id for entry in answer.logprobs] == answer.token_ids
    assert b"".join(entry.token.token_bytes for entry in answer.logprobs).decode("utf-8", "replace") == answer.text
    assert all(entry.token.logprob <= 0 and not entry.top for entry in answer.logprobs)
