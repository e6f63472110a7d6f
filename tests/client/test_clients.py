"""The short clients: what they send, what they give back, and what they raise."""

from __future__ import annotations

import pickle

import pytest
from inferwire import AsyncClient, Client
from inferwire.errors import InvalidRequest, Overloaded, Reason, StreamLost, Unavailable
from inferwire.settings import ResumeMode, ResumePolicy
from inferwire.testing import MODEL, RESET, Refusal, Script, blocking_fake_server, fake_server, token_id

from tests.client.regions_of_fakes import config_of

TEXT = "Hello, world!"


async def test_a_prompt_becomes_a_request_with_the_only_model() -> None:
    async with fake_server() as server, AsyncClient(server.address) as client:
        reply = await client.generate("hi", max_output_tokens=2, temperature=0.5, stop="END", priority="batch", seed=5)

    assert (reply.text, reply.finish_reason, reply.output_tokens, reply.seed) == ("Hello,", "length", 2, 5)
    sent = server.calls[0].request
    assert (sent.model, sent.prompt, sent.max_output_tokens, sent.sampling.temperature) == (MODEL, "hi", 2, 0.5)
    assert (list(sent.stop.strings), sent.scheduling.priority) == (["END"], 3)


async def test_a_conversation_and_token_ids_are_prompts_too() -> None:
    async with fake_server() as server, AsyncClient(server.address) as client:
        await client.chat([("system", "be brief"), {"role": "user", "content": "hi"}])
        await client.chat("hello")
        await client.generate([1, 2, 3])

    first, second, third = [call.request for call in server.calls]
    assert [(message.role, message.text) for message in first.chat.messages] == [("system", "be brief"), ("user", "hi")]
    assert [(message.role, message.text) for message in second.chat.messages] == [("user", "hello")]
    assert list(third.token_ids.ids) == [1, 2, 3]


async def test_a_session_goes_along_as_metadata() -> None:
    async with fake_server() as server, AsyncClient(server.address, tenant="acme") as client:
        await client.generate("hi", session="conversation 7")
        async for _ in client.stream("hi", session="conversation 7"):
            pass
        await client.generate("hi")

    assert [call.metadata.get("x-inferwire-session") for call in server.calls] == ["conversation 7"] * 2 + [None]
    assert {call.metadata["x-inferwire-tenant"] for call in server.calls} == {"acme"}


async def test_a_stream_gives_chunks_and_then_the_whole_reply() -> None:
    async with fake_server() as server, AsyncClient(server.address) as client:
        stream = client.stream("hi", token_ids=True)
        chunks = [chunk async for chunk in stream]

    assert [chunk.text for chunk in chunks] == ["Hello", ",", " world", "!"]
    assert chunks[0].token_ids == (token_id("Hello"),)
    assert (stream.text, stream.reply.finish_reason, stream.reply.output_tokens) == (TEXT, "stop", 4)


async def test_token_ids_that_were_not_asked_for_are_not_there() -> None:
    async with fake_server() as server, AsyncClient(server.address) as client:
        assert all([not chunk.token_ids async for chunk in client.stream("hi")])

    assert server.calls[0].request.output.token_ids


async def test_leaving_a_stream_cancels_the_generation() -> None:
    endless = Script(tokens=("word ",) * 100_000, token_delay_s=0.001)
    async with fake_server(endless) as server, AsyncClient(server.address) as client:
        stream = client.stream("hi")
        async for _ in stream:
            break
        del stream
        await server.until(lambda: server.calls[0].ending == "cancelled")


async def test_tokenize_detokenize_and_models() -> None:
    async with fake_server() as server, AsyncClient(server.address) as client:
        ids = await client.tokenize("héllo")

        assert await client.detokenize(ids) == "héllo"
        assert [model.name for model in await client.models()] == [MODEL]
        await client.server_info()
        await client.status()


async def test_errors_are_typed_and_survive_a_task_queue() -> None:
    refusal = Refusal(Reason.OVERLOADED, message="no room: try again later")
    async with fake_server(Script(mishap=refusal)) as server, AsyncClient(server.address) as client:
        with pytest.raises(Overloaded, match="no room") as caught:
            await client.generate("hi")

    again = pickle.loads(pickle.dumps(caught.value))  # noqa: S301 our own
    assert (type(again), again.reason, again.attempts) == (Overloaded, Reason.OVERLOADED, caught.value.attempts)
    assert [attempt.reason for attempt in again.attempts] == [Reason.OVERLOADED]


async def test_a_lost_stream_says_what_it_had() -> None:
    async with fake_server(Script(mishap=RESET, after_tokens=2)) as server:
        client = AsyncClient(config_of(server, resume=ResumePolicy(mode=ResumeMode.NEVER)))
        stream = client.stream("hi")
        with pytest.raises(StreamLost) as caught:
            [chunk async for chunk in stream]
        await client.close()

    assert caught.value.text_so_far == stream.text == "Hello,"


async def test_misspelt_options_and_wrong_values_are_refused_at_once() -> None:
    async with AsyncClient("127.0.0.1:1") as client:
        with pytest.raises(TypeError, match="max_tokens"):
            await client.generate("hi", max_tokens=3)  # type: ignore[call-arg]
        with pytest.raises(ValueError, match="interactive, standard or batch"):
            await client.generate("hi", model="m", priority="urgent")


async def test_a_client_says_what_it_is_and_that_it_is_closed() -> None:
    async with fake_server() as server:
        client = AsyncClient(server.address)
        assert "idle" in repr(client)
        await client.generate("hi")
        assert server.address in repr(client)
        await client.close()
        assert "closed" in repr(client)
        with pytest.raises(RuntimeError, match="closed"):
            await client.generate("hi")


def test_the_blocking_client_does_the_same() -> None:
    with blocking_fake_server() as server, Client(server.address) as client:
        with client.stream("hi") as stream:
            texts = [chunk.text for chunk in stream]

        assert client.generate("hi").text == client.chat("hi").text == "".join(texts) == stream.text == TEXT
        assert client.detokenize(client.tokenize("hi")) == "hi"
        assert client.models()[0].name == MODEL
        assert client.server_info() is not None
        assert client.status() is not None
        assert "open" in repr(client) or server.address in repr(client)
    with pytest.raises(RuntimeError, match="closed"):
        client.generate("hi")


def test_a_blocking_stream_that_is_dropped_is_cancelled() -> None:
    endless = Script(tokens=("word ",) * 100_000, token_delay_s=0.001)
    with blocking_fake_server(endless) as server, Client(server.address) as client:
        for _ in client.stream("hi"):
            break
        assert client.models()
        server.wait_until(lambda: server.calls[0].ending == "cancelled")


def test_a_server_that_is_not_there_is_named() -> None:
    with Client("127.0.0.1:1") as client, pytest.raises(Unavailable, match="no allowed region can serve"):
        client.generate("hi", model="m", timeout_s=10)


async def test_several_models_ask_for_a_name() -> None:
    async with fake_server() as server, AsyncClient(server.address) as client:
        server.models = ("one", "two")
        with pytest.raises(InvalidRequest, match="name a model: there are one, two"):
            await client.generate("hi")
