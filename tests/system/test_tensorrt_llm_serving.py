"""`inferwire serve` on a checkpoint folder with the stand-in for TensorRT-LLM: real processes, real sockets."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import pytest_asyncio
from inferwire.v1 import generation_pb2, model_pb2

from tests.answers import replied, streamed
from tests.checkpoint_folder import VOCABULARY_SIZE, write_checkpoint
from tests.engines.tensorrt_llm.toy_checkpoint import STANDIN
from tests.server_process import server_process
from tests.serving import error_info, refusal
from tests.standin_server import StandinServer, standin_server, toy_request

LONG = "x" * 200
"""200 tokens: six full cache blocks of 32 and some more."""
CONTEXT = 300
"""Tokens; less than the checkpoint's own."""

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def cached(server: StandinServer, tenant: str, **cache: Any) -> int:
    """Cached prompt tokens of one call of a tenant."""
    message = toy_request(LONG, cache=cache, max_output_tokens=2)
    usage = (await server.inference.Generate(message, metadata=(("x-inferwire-tenant", tenant),))).usage
    assert usage.HasField("cached_tokens")
    cached_tokens: int = usage.cached_tokens
    return cached_tokens


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[StandinServer]:
    """One process for all tests here that do not end it."""
    folder = write_checkpoint(tmp_path_factory.mktemp("checkpoint"))
    async with standin_server(folder, engine_options={"max_context_tokens": CONTEXT}) as server:
        yield server


async def test_both_calls_answer_alike(server: StandinServer) -> None:
    answer = await streamed(server, toy_request())
    reply = await replied(server, toy_request())
    assert (reply.text, reply.token_ids) == (answer.text, answer.token_ids)
    assert len(answer.token_ids) == answer.usage.output_tokens == 16
    assert answer.text.startswith(" word")
    assert answer.finished.reason == generation_pb2.FINISH_REASON_LENGTH


async def test_model_bounds_and_chat_template_are_the_folder_s(server: StandinServer) -> None:
    (model,) = (await server.models.ListModels(model_pb2.ListModelsRequest())).models
    chat = {"messages": [{"role": "user", "text": "hi"}]}
    started = (await streamed(server, toy_request(None, chat=chat))).started
    assert started.model == model.name
    assert started.model_fingerprint == model.fingerprint
    assert model.engine.startswith("tensorrt-llm")
    assert (model.limits.max_context_tokens, model.limits.vocabulary_size) == (CONTEXT, VOCABULARY_SIZE)
    assert set(model.chat_roles) == {"system", "user", "assistant"}
    assert started.prompt_tokens == len("<user hi><assistant ")


async def test_an_engine_that_ignores_seeds_refuses_one_and_echoes_none(server: StandinServer) -> None:
    assert not (await streamed(server, toy_request(sampling={"temperature": 1.0}))).started.HasField("seed")
    error = await refusal(server.inference.Generate(toy_request(sampling={"temperature": 1.0, "seed": 5})))
    assert (error.code(), error_info(error).reason) == (grpc.StatusCode.UNIMPLEMENTED, "CAPABILITY_ABSENT")


@pytest.mark.case("H15")
async def test_tenants_share_the_engine_and_no_cached_prefix(server: StandinServer) -> None:
    assert [await cached(server, tenant) for tenant in ("a", "a", "b", "a", "b")] == [0, 192, 0, 192, 192]
    assert [await cached(server, "a", salt=salt) for salt in ("s", "s", "t")] == [0, 192, 0]
    assert await cached(server, "b", salt="s") == 0
    assert await cached(server, "a", bypass=True) == 0


async def test_a_resumed_stream_goes_on_behind_the_tokens_it_brought(server: StandinServer) -> None:
    whole = await streamed(server, toy_request(max_output_tokens=40))
    held = {"output_index": 0, "token_ids": whole.token_ids[:15]}
    resume = {"prompt_digest": whole.started.prompt_digest, "outputs": [held]}
    rest = await streamed(server, toy_request(max_output_tokens=40, resume=resume))
    assert rest.started.continuation == generation_pb2.CONTINUATION_PREFILLED
    assert whole.token_ids[:15] + rest.token_ids == whole.token_ids
    assert (rest.usage.resumed_tokens, rest.usage.output_tokens) == (15, 40)


async def test_the_sampler_that_honours_seeds_echoes_the_one_it_drew(tmp_path: Path) -> None:
    async with standin_server(write_checkpoint(tmp_path), engine_options={"sampler": "trtllm"}) as server:
        first = await streamed(server, toy_request(sampling={"temperature": 1.0}))
        again = await streamed(server, toy_request(sampling={"temperature": 1.0, "seed": first.started.seed}))
    assert first.started.HasField("seed")
    assert again.token_ids == first.token_ids


async def test_a_wrong_option_ends_the_process_before_anything_is_loaded(tmp_path: Path) -> None:
    given: dict[str, Any] = {"model": str(write_checkpoint(tmp_path, load_hangs=True)), "packages": STANDIN}
    given["engine_options"] = {"max_num_tokens": 4}
    async with server_process(engine="tensorrt-llm", until="", **given) as server:
        assert await server.until_exit() == 2
    assert any("did you mean max_batch_tokens?" in line["event"] for line in server.log), server.log
