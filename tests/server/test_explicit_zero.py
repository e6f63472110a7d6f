"""An explicit zero is not the same as unset, on the wire and in JSON."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import json_format
from inferwire.v1 import generation_pb2, model_pb2

from tests.serving import MODEL, Serving, bad_request, refusal, request, serving

pytestmark = pytest.mark.case("H13")


async def texts(server: Serving, messages: list[generation_pb2.GenerateRequest]) -> list[str]:
    replies = [server.inference.Generate(message) for message in messages]
    return [(await reply).outputs[0].text for reply in replies]


def in_json(fields: dict[str, Any]) -> generation_pb2.GenerateRequest:
    """The request that a JSON document stands for."""
    document = json.dumps({"model": MODEL, "prompt": "tell a story", "maxOutputTokens": 64} | fields)
    return json_format.Parse(document, generation_pb2.GenerateRequest())


def on_the_wire(fields: dict[str, Any]) -> generation_pb2.GenerateRequest:
    return request(**({"max_output_tokens": 64} | fields))


written = pytest.mark.parametrize("write", [on_the_wire, in_json], ids=["wire", "json"])


@written
async def test_temperature_zero_is_greedy_and_unset_is_the_model_s_default(write: Any) -> None:
    async with serving() as server:
        model = (await server.models.GetModel(model_pb2.GetModelRequest(model=MODEL))).model
        assert model.defaults.sampling.temperature == 1.0
        zeros = await texts(server, [write({"sampling": {"temperature": 0}}) for _ in range(5)])
        unset = await texts(server, [write({}) for _ in range(5)])
        ones = await texts(server, [write({"sampling": {"temperature": 1, "seed": 4}}) for _ in range(2)])
        seeded = await texts(server, [write({"sampling": {"seed": 4}})])
    assert len(set(zeros)) == 1
    assert len(set(unset)) > 1
    assert set(ones) == set(seeded)


@written
async def test_seed_zero_is_a_seed(write: Any) -> None:
    async with serving() as server:
        zeros = [await server.inference.Generate(write({"sampling": {"seed": 0}})) for _ in range(3)]
        unset = [await server.inference.Generate(write({"sampling": {}})) for _ in range(3)]
    assert len({reply.outputs[0].text for reply in zeros}) == 1
    assert {reply.started.seed for reply in zeros} == {0}
    assert len({reply.started.seed for reply in unset}) == 3
    assert len({reply.outputs[0].text for reply in unset}) > 1


@written
@pytest.mark.parametrize("name", ["top_p", "repetition_penalty"])
async def test_a_zero_without_a_meaning_is_refused_though_unset_is_fine(write: Any, name: str) -> None:
    async with serving() as server:
        error = await refusal(server.inference.Generate(write({"sampling": {name: 0}})))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert bad_request(error).field_violations[0].field == f"sampling.{name}"


@written
@pytest.mark.parametrize("name", ["top_k", "min_p", "presence_penalty", "frequency_penalty"])
async def test_a_zero_that_means_off_equals_the_default_here(write: Any, name: str) -> None:
    async with serving() as server:
        zero, unset = await texts(server, [write({"sampling": {name: 0, "seed": 1}}), write({"sampling": {"seed": 1}})])
    assert zero == unset


async def test_zero_tokens_and_zero_outputs_are_refused_though_unset_is_fine() -> None:
    async with serving() as server:
        for fields, field in (
            ({"max_output_tokens": 0}, "max_output_tokens"),
            ({"output": {"count": 0}}, "output.count"),
        ):
            error = await refusal(server.inference.Generate(on_the_wire(fields)))
            assert bad_request(error).field_violations[0].field == field
        defaults = await server.inference.Generate(on_the_wire({"max_output_tokens": None}))
        assert (defaults.usage.output_tokens, len(defaults.outputs)) == (512, 1)


async def test_zero_logprobs_are_those_of_the_chosen_token_and_unset_none() -> None:
    async with serving() as server:
        chosen = (await server.inference.Generate(on_the_wire({"output": {"top_logprobs": 0}}))).outputs[0]
        unset = (await server.inference.Generate(on_the_wire({}))).outputs[0]
    assert len(chosen.logprobs) == 64
    assert not any(entry.top for entry in chosen.logprobs)
    assert len(unset.logprobs) == 0


async def test_text_false_is_not_text_unset() -> None:
    async with serving() as server:
        fields = {"sampling": {"temperature": 0}, "output": {"text": False, "token_ids": True}}
        silent = (await server.inference.Generate(on_the_wire(fields))).outputs[0]
        spoken = (await server.inference.Generate(on_the_wire({"sampling": {"temperature": 0}}))).outputs[0]
    assert silent.text == ""
    assert bytes(silent.token_ids).decode() == spoken.text
    assert not spoken.token_ids


async def test_grpcurl_sends_an_explicit_zero(grpcurl: Path) -> None:
    async def text(server: Serving, sampling: dict[str, Any]) -> str:
        data = json.dumps({"model": MODEL, "prompt": "hi", "maxOutputTokens": 64, "sampling": sampling})
        process = await asyncio.create_subprocess_exec(
            str(grpcurl), "-plaintext", "-d", data, server.address, "inferwire.v1.InferenceService/Generate",
            stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        out, _ = await process.communicate()
        answer: str = json.loads(out)["outputs"][0]["text"]
        return answer

    async with serving() as server:
        assert await text(server, {"temperature": 0}) == await text(server, {"temperature": 0})
        assert await text(server, {}) != await text(server, {})
