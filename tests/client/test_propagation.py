"""A service in the middle: its own deadline goes along, only one layer retries, and the trace stays the same."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from inferwire import AsyncClient, BlockingResilientChannel, ResilientChannel, ResilientRpcError, serving
from inferwire.testing import RESET, Script, fake_server
from inferwire.trace_context import child_of, trace_id
from inferwire.v1 import generation_pb2

from tests.client.regions_of_fakes import blocking_text_of, config_of, failure, fakes, request, stub_of, text_of

TRACEPARENT = re.compile("00-[0-9a-f]{32}-[0-9a-f]{16}-0[01]")
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


async def test_a_call_begins_a_trace_and_all_of_its_attempts_are_in_it() -> None:
    async with fakes(Script(mishap=RESET), Script()) as (a, b), ResilientChannel(config_of(a, b)) as channel:
        await text_of(stub_of(channel).Generate(request()))
        await text_of(stub_of(channel).Generate(request()))

    first, second, other = (str(call.metadata["traceparent"]) for call in (a.calls[0], *b.calls))
    assert TRACEPARENT.fullmatch(first)
    assert first == second
    assert trace_id(first) != trace_id(other)


async def test_a_call_made_while_serving_is_in_the_trace_of_the_served_one() -> None:
    given = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    async with fake_server() as behind, ResilientChannel(behind.address) as onward:

        async def handler(received: Any, context: Any) -> Any:
            with serving(context):
                return await stub_of(onward).Generate(received)

        async with middle(handler) as address, grpc.aio.insecure_channel(address) as channel:
            metadata = (("traceparent", given), ("tracestate", "vendor=1"))
            await text_of(stub_of(channel).Generate(request(), metadata=metadata))

    sent = behind.calls[0].metadata
    passed_on = str(sent["traceparent"])
    assert TRACEPARENT.fullmatch(passed_on)
    assert (trace_id(passed_on), passed_on[-2:], sent["tracestate"]) == (trace_id(given), "01", "vendor=1")
    assert passed_on != given


async def test_a_trace_that_the_caller_names_is_left_as_it_is() -> None:
    given = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    async with fakes(Script()) as (server,), ResilientChannel(config_of(server)) as channel:
        await text_of(stub_of(channel).StreamGenerate(request(), metadata=(("traceparent", given),)))

    assert server.calls[0].metadata["traceparent"] == given


@pytest.mark.parametrize(
    "given",
    ["", "00", "nonsense", "ff-" + "1" * 32 + "-" + "2" * 16 + "-01", "00-" + "0" * 32 + "-" + "2" * 16 + "-01"],
)
def test_a_malformed_trace_is_replaced_by_a_new_one(given: str) -> None:
    assert trace_id(given) == ""
    assert TRACEPARENT.fullmatch(child_of(given))
