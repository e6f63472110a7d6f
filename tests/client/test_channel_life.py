"""How a channel begins and ends, and what leaving a call does."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
from functools import partial

import grpc
import pytest
from inferwire import BlockingResilientChannel, ClientConfig, Region, ResilientChannel, ResilientRpcError
from inferwire.channels import Fleet
from inferwire.errors import Cancelled, Code, Reason
from inferwire.settings import StallPolicy
from inferwire.testing import MODEL, RESET, BareStatus, Refusal, Script, Silence, blocking_fake_server, fake_server
from inferwire.v1 import operations_pb2, operations_pb2_grpc

from tests.client.regions_of_fakes import blocking_text_of, channel_to, failure, fakes, request, stub_of, text_of
from tests.polling import until

TEXT = "Hello, world!"
ENDLESS = Script(tokens=("word ",) * 100_000, token_delay_s=0.001)


async def test_nothing_is_opened_before_the_first_call() -> None:
    async with fake_server() as server:
        channel = ResilientChannel(server.address)
        stub_of(channel)

        assert "idle" in repr(channel)
        assert channel.get_state() is grpc.ChannelConnectivity.IDLE
        await channel.close()
        assert server.connections == 0


async def test_a_closed_channel_says_so() -> None:
    async with fake_server() as server:
        channel = ResilientChannel(server.address)
        await text_of(stub_of(channel).Generate(request()))
        await channel.close()

        with pytest.raises(RuntimeError, match="closed"):
            stub_of(channel).Generate(request())
        assert channel.get_state() is grpc.ChannelConnectivity.SHUTDOWN


async def test_another_event_loop_is_refused() -> None:
    async with fake_server() as server, channel_to(server) as channel:
        await text_of(stub_of(channel).Generate(request()))

        async def elsewhere() -> None:
            stub_of(channel).Generate(request())

        with pytest.raises(RuntimeError, match="another event loop"):
            await asyncio.to_thread(asyncio.run, elsewhere())


async def test_closing_ends_running_streams_and_leaves_no_task() -> None:
    before = asyncio.all_tasks()
    async with fake_server(ENDLESS) as server:
        channel = ResilientChannel(server.address)
        stream = stub_of(channel).StreamGenerate(request())
        await stream.read()
        async with asyncio.timeout(10):
            await channel.close()
        with pytest.raises(asyncio.CancelledError):
            await text_of(stream)
        await server.until(lambda: server.calls[0].ending == "cancelled")
        assert not [task for task in asyncio.all_tasks() - before if "health" in task.get_name()]


async def test_breaking_out_of_a_stream_cancels_it_on_the_server() -> None:
    async with fake_server(ENDLESS) as server, channel_to(server) as channel:
        async for event in stub_of(channel).StreamGenerate(request()):
            if event.HasField("delta"):
                break
        gc.collect()
        await server.until(lambda: server.calls[0].ending == "cancelled")

        state = channel.fleet().links[0].state
        assert (state.outstanding, state.breaker.state) == (0, "closed")


async def test_cancelling_from_another_task_wakes_the_reader_and_spares_its_task() -> None:
    async with fake_server(Script(mishap=Silence(), after_tokens=1)) as server, channel_to(server) as channel:
        call = stub_of(channel).StreamGenerate(request())

        async def reader() -> str:
            with pytest.raises(asyncio.CancelledError):
                await text_of(call)
            await asyncio.sleep(0)
            return "still alive"

        reading = asyncio.create_task(reader())
        await server.until(lambda: bool(server.calls))
        assert call.cancel()
        assert not call.cancel()
        assert await reading == "still alive"
        assert await call.code() is grpc.StatusCode.CANCELLED
        await server.until(lambda: server.calls[0].ending == "cancelled")


async def test_a_call_that_waits_to_try_again_can_be_cancelled() -> None:
    hint = Script(mishap=Refusal(Reason.QUOTA, hint_s=30.0))
    async with fake_server(hint) as server, channel_to(server) as channel:
        call = stub_of(channel).Generate(request())
        waiting = asyncio.create_task(text_of(call))
        await server.until(lambda: bool(server.calls) and server.calls[0].ending == "failed")
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

        assert (call.done(), call.cancelled()) == (True, True)
        assert channel.fleet().links[0].state.outstanding == 0


async def test_a_call_may_be_awaited_twice_and_calls_back_when_done() -> None:
    async with fake_server() as server, channel_to(server) as channel:
        call = stub_of(channel).Generate(request())
        done = asyncio.Event()
        call.add_done_callback(lambda _: done.set())
        first, second = await asyncio.gather(text_of(call), text_of(call))
        await done.wait()

        assert (first, second, len(server.calls)) == (TEXT, TEXT, 1)


async def test_an_operators_command_goes_to_one_server_only() -> None:
    async with fakes(Script(mishap=RESET), Script()) as (a, b), channel_to(a, b) as channel:
        stub: operations_pb2_grpc.OperationsServiceAsyncStub = operations_pb2_grpc.OperationsServiceStub(channel)
        with pytest.raises(ResilientRpcError) as caught:
            await stub.Drain(operations_pb2.DrainRequest())

    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert (len(a.others), len(b.others)) == (1, 0)


async def test_a_report_that_has_begun_is_not_begun_again_elsewhere() -> None:
    async with fakes(Script(mishap=RESET), Script()) as (a, b), channel_to(a, b) as channel:
        stub: operations_pb2_grpc.OperationsServiceAsyncStub = operations_pb2_grpc.OperationsServiceStub(channel)
        watch = stub.WatchLoad(operations_pb2.WatchLoadRequest())
        await watch.read()
        with pytest.raises(ResilientRpcError):
            await watch.read()

    assert (len(a.others), len(b.others)) == (1, 0)


async def test_a_forbidden_region_gets_not_even_a_connection() -> None:
    arrived: list[str] = []
    listener = await asyncio.start_server(lambda _, writer: arrived.append("a connection"), "127.0.0.1", 0)
    address = "{}:{}".format(*listener.sockets[0].getsockname())
    async with listener, fake_server() as server:
        regions = (
            Region(name="far", endpoints=(address,)),
            Region(name="near", endpoints=(server.address,), priority=1),
        )
        async with ResilientChannel(ClientConfig(regions=regions, allowed_regions=("near",))) as channel:
            for _ in range(5):
                await text_of(stub_of(channel).StreamGenerate(request()))
            await channel.channel_ready()
            await server.kill()
            await failure(stub_of(channel).Generate(request()))

    assert arrived == []


async def test_names_are_resolved_by_the_client() -> None:
    async with fake_server() as server:
        port = server.address.rpartition(":")[2]
        async with ResilientChannel(f"localhost:{port}") as channel:
            text = await text_of(stub_of(channel).Generate(request()))
            targets = [link.endpoint.target for link in channel.fleet().links]

    assert text == TEXT
    assert f"127.0.0.1:{port}" in targets


async def test_a_name_that_resolves_to_nothing_is_an_outage_with_that_reason() -> None:
    config = ClientConfig.for_address("no-such-host.invalid:1", connect_timeout_s=0.2)
    async with ResilientChannel(config) as channel:
        error = await failure(stub_of(channel).Generate(request(), timeout=5))

    assert error.code() is grpc.StatusCode.UNAVAILABLE
    assert getattr(error.error, "regions", None) == {"default": "NO_ENDPOINT"}


async def test_a_name_is_resolved_again_as_soon_as_a_connection_is_lost() -> None:
    async with fakes(Script(), Script()) as (a, b):
        addresses = [a.address]

        async def lookup(host: str, port: int) -> list[str]:
            return addresses

        config = ClientConfig.for_address("infer.test:1", resolve_interval_s=3600.0)
        async with ResilientChannel(config, open_fleet=partial(Fleet, lookup=lookup)) as channel:
            await text_of(stub_of(channel).Generate(request()))
            addresses[:] = [b.address]
            await a.kill()
            await failure(stub_of(channel).Generate(request(), timeout=5))
            await until(lambda: [link.endpoint.target for link in channel.fleet().links] == [b.address])
            await text_of(stub_of(channel).Generate(request()))

    assert (len(a.calls), len(b.calls)) == (1, 1)


def test_a_channel_used_before_a_fork_says_so_in_the_child() -> None:
    with blocking_fake_server() as server:
        program = f"""
import os, sys
from inferwire import Client
client = Client({server.address!r})
assert client.generate("hi").text == "Hello, world!"
sys.stdout.flush()
child = os.fork()
if child == 0:
    try:
        client.generate("hi")
    except RuntimeError as error:
        os._exit(0 if "fork" in str(error) else 1)
    os._exit(2)
status = os.waitpid(child, 0)[1]
client.close()
sys.exit(os.waitstatus_to_exitcode(status))
"""
        done = subprocess.run([sys.executable, "-c", program], timeout=30, check=False, env=dict(os.environ))

    assert done.returncode == 0


def test_a_blocking_reader_learns_that_another_thread_cancelled() -> None:
    with blocking_fake_server(Script(mishap=Silence(), after_tokens=1)) as server:
        channel = BlockingResilientChannel(server.address)
        stream = stub_of(channel).StreamGenerate(request())
        assert next(stream).HasField("started")
        next(stream)
        stream.cancel()
        with pytest.raises(ResilientRpcError) as caught:
            next(stream)
        channel.close()

    assert isinstance(caught.value.error, Cancelled)


def test_a_blocking_channel_calls_and_streams_and_closes() -> None:
    with blocking_fake_server() as server, BlockingResilientChannel(server.address) as channel:
        assert blocking_text_of(channel, is_stream=False) == TEXT
        assert blocking_text_of(channel, is_stream=True) == TEXT
        assert stub_of(channel).Generate.future(request()).result(10).outputs[0].text == TEXT
        response, call = stub_of(channel).Generate.with_call(request(model=MODEL))
        assert (response.outputs[0].text, call.code()) == (TEXT, grpc.StatusCode.OK)
    with pytest.raises(RuntimeError, match="closed"):
        blocking_text_of(channel, is_stream=False)


async def test_a_dead_endpoint_is_noticed_again_after_it_returns() -> None:
    async with fake_server() as server, channel_to(server, stall=StallPolicy()) as channel:
        await text_of(stub_of(channel).Generate(request()))
        await server.kill()
        await failure(stub_of(channel).Generate(request(), timeout=5))
        await server.start()
        fleet = channel.fleet()
        async with asyncio.timeout(20):
            await fleet.until(lambda: fleet.links[0].state.is_serving is True)

        assert await text_of(stub_of(channel).Generate(request(), timeout=20)) == TEXT


async def test_what_a_stub_raises_is_a_grpc_error_with_the_typed_one_inside() -> None:
    missing = Script(mishap=BareStatus(Code.NOT_FOUND, "no such model"))
    async with fake_server(missing) as server, channel_to(server) as channel:
        error = await failure(stub_of(channel).Generate(request()))

    assert isinstance(error, grpc.aio.AioRpcError)
    assert (error.code(), error.details()) == (grpc.StatusCode.NOT_FOUND, "no such model")
    assert dict(error.trailing_metadata())["x-inferwire-attempts"] == "1"
