"""A service in the middle: its own deadline goes along, and only one layer retries."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
from inferwire import AsyncClient, BlockingResilientChannel, ResilientChannel, ResilientRpcError, serving
from inferwire.testing import RESET, Script, fake_server
from inferwire.v1 import generation_pb2

from tests.client.regions_of_fakes import blocking_text_of, config_of, failure, fakes, request, stub_of, text_of

Handler = Callable[[generation_pb2.GenerateRequest, Any], Awaitable[generation_pb2.GenerateResponse]]


@asynccontextmanager
async def middle(handler: Handler) -> AsyncIterator[str]:
    """A service that answers Generate by a handler; its address."""
    server = grpc.aio.server()
    generate: Any = grpc.unary_unary_rpc_method_handler(
        handler,
        request_deserializer=generation_pb2.GenerateRequest.FromString,
        response_serializer=generation_pb2.GenerateResponse.SerializeToString,
    )
    handlers = grpc.method_handlers_generic_handler("inferwire.v1.InferenceService", {"Generate": generate})
    server.add_generic_rpc_handlers((handlers,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield f"127.0.0.1:{port}"
    await server.stop(None)


async def test_a_call_made_while_serving_ends_no_later_than_the_served_one() -> None:
    async with fake_server() as behind, ResilientChannel(behind.address) as onward:

        async def handler(received: Any, context: Any) -> Any:
            with serving(context):
                return await stub_of(onward).Generate(received, timeout=60)

        async with middle(handler) as address, grpc.aio.insecure_channel(address) as channel:
            await text_of(stub_of(channel).Generate(request(), timeout=5))

    # On the wire a deadline is rounded up.
    assert 0 < (behind.calls[0].time_remaining_s or 0) <= 6


async def test_a_blocking_call_made_while_serving_keeps_the_deadline_too() -> None:
    async with fake_server() as behind:
        with BlockingResilientChannel(behind.address) as onward:

            async def handler(received: Any, context: Any) -> Any:
                with serving(context):
                    await asyncio.to_thread(blocking_text_of, onward, is_stream=False)
                return generation_pb2.GenerateResponse()

            async with middle(handler) as address, grpc.aio.insecure_channel(address) as channel:
                await stub_of(channel).Generate(request(), timeout=5)

    # On the wire a deadline is rounded up.
    assert 0 < (behind.calls[0].time_remaining_s or 0) <= 6


async def test_only_the_outer_client_retries() -> None:
    async with fakes(Script(mishap=RESET), Script()) as (a, b), ResilientChannel(config_of(a, b)) as onward:

        async def handler(received: Any, context: Any) -> Any:
            with serving(context) as incoming:
                assert incoming.is_retried_above
                try:
                    return await stub_of(onward).Generate(received)
                except ResilientRpcError as error:
                    await context.abort(error.code(), error.details())

        async with middle(handler) as address, ResilientChannel(address) as channel:
            error = await failure(stub_of(channel).Generate(request(), timeout=10))

    # Each attempt of the outer client is one attempt of the inner one.
    assert (len(a.calls), len(b.calls)) == (len(error.error.attempts), 0)


async def test_a_caller_without_a_retrying_client_leaves_retries_to_the_middle() -> None:
    async with fakes(Script(mishap=RESET), Script()) as (a, b), ResilientChannel(config_of(a, b)) as onward:

        async def handler(received: Any, context: Any) -> Any:
            with serving(context):
                return await stub_of(onward).Generate(received)

        async with middle(handler) as address, grpc.aio.insecure_channel(address) as channel:
            assert await text_of(stub_of(channel).Generate(request(), timeout=10)) == "Hello, world!"

    assert (len(a.calls), len(b.calls)) == (1, 1)


async def test_every_attempt_says_that_a_client_retries_and_carries_the_callers_metadata() -> None:
    async with fakes(Script(mishap=RESET), Script()) as (a, b), AsyncClient(config_of(a, b), tenant="blue") as client:
        await client.generate("hi")

    for number, call in enumerate((a.calls[0], b.calls[0])):
        assert call.metadata["x-inferwire-retries"] == "client"
        assert call.metadata["x-inferwire-attempt"] == str(number)
        assert call.metadata["x-inferwire-tenant"] == "blue"
