"""A caller that pinned a model is served by exactly that one or not at all, and can read what there is."""

from __future__ import annotations

from typing import Any

import grpc
import pytest
from inferwire.v1 import inference_pb2, model_pb2
from inferwire_server.engines.scripted import ScriptedOptions

from tests.serving import MODEL, Serving, error_info, refusal, request, retry_hint_ms, serving

PINS = ("fingerprint", "tokenizer_digest", "chat_template_digest")


async def described(server: Serving) -> model_pb2.Model:
    return (await server.models.GetModel(model_pb2.GetModelRequest(model=MODEL))).model


@pytest.mark.parametrize("pin", PINS)
async def test_the_right_pin_is_served_and_a_wrong_one_is_not(pin: str) -> None:
    async with serving() as server:
        right = getattr(await described(server), pin)
        answer = await server.inference.Generate(request(expected_model={pin: right}))
        assert answer.started.model == "scripted@1"
        for call in (server.inference.Generate, server.inference.StreamGenerate):
            error = await refusal(call(request(expected_model={pin: "0" * 64})))
            assert (error.code(), error_info(error).reason) == (grpc.StatusCode.FAILED_PRECONDITION, "MODEL_MISMATCH")
            assert error_info(error).metadata["field"] == f"expected_model.{pin}"
            assert retry_hint_ms(error) is None
        assert server.sample("inferwire_prompt_tokens_total") == answer.usage.prompt_tokens


async def test_what_is_started_is_what_is_described() -> None:
    async with serving() as server:
        model = await described(server)
        started = (await server.inference.Generate(request())).started
        tokens = await server.inference.Tokenize(inference_pb2.TokenizeRequest(model=MODEL, prompt="x"))
        assert (started.model, started.model_fingerprint) == (model.name, model.fingerprint)
        assert tokens.tokenizer_digest == model.tokenizer_digest


@pytest.mark.parametrize("name", [MODEL, "scripted@1"])
async def test_a_model_is_found_by_its_name_with_and_without_its_version(name: str) -> None:
    async with serving() as server:
        model = (await server.models.GetModel(model_pb2.GetModelRequest(model=name))).model
        assert (model.name, model.state) == ("scripted@1", model_pb2.MODEL_STATE_READY)
        assert (await server.inference.Generate(request(model=name))).outputs[0].text


async def test_the_published_limits_are_those_that_hold() -> None:
    async with serving(ScriptedOptions(step_base_s=0.002, max_context_tokens=256, max_running=3)) as server:
        model = await described(server)
        limits = model.limits
        assert (limits.max_context_tokens, limits.max_output_tokens, limits.max_output_count) == (256, 255, 3)
        assert (limits.max_top_logprobs, limits.vocabulary_size) == (20, 260)
        most: Any = {"count": limits.max_output_count, "top_logprobs": limits.max_top_logprobs}
        assert len((await server.inference.Generate(request(output=most))).outputs) == 3
        over = await refusal(server.inference.Generate(request(output={"count": limits.max_output_count + 1})))
        assert error_info(over).metadata["limit"] == "3"


async def test_models_are_listed_and_unknown_ones_are_not_found() -> None:
    async with serving() as server:
        listed = await server.models.ListModels(model_pb2.ListModelsRequest())
        assert [model.name for model in listed.models] == ["scripted@1"]
        assert listed.models[0] == await described(server)
        error = await refusal(server.models.GetModel(model_pb2.GetModelRequest(model="scripted@2")))
        assert (error.code(), error_info(error).reason) == (grpc.StatusCode.NOT_FOUND, "MODEL_NOT_FOUND")


async def test_a_dead_engine_s_model_is_unavailable_and_a_draining_server_s_too() -> None:
    async with serving(ScriptedOptions(step_base_s=0.005)) as server:
        server.engine.die("a test wants it")
        assert (await described(server)).state == model_pb2.MODEL_STATE_UNAVAILABLE
        server.engine.recover()
        stream: Any = server.inference.StreamGenerate(request(max_output_tokens=4000))
        await stream.read()
        server.server.drain()
        assert (await described(server)).state == model_pb2.MODEL_STATE_UNAVAILABLE
        stream.cancel()


async def test_a_server_says_what_it_is() -> None:
    async with serving(region="eu-1") as server, serving(region="eu-1") as other:
        said = await server.inference.GetServerInfo(inference_pb2.GetServerInfoRequest())
        others = await other.inference.GetServerInfo(inference_pb2.GetServerInfoRequest())
        assert said.region == "eu-1"
        assert said.server_id != others.server_id
        assert said.schema_revision >= said.oldest_client_revision >= 1
        assert said.server_version == others.server_version != ""
