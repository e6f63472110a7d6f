"""Upgrades and rollbacks by restart: whoever pinned a model is served by that one alone, and nobody sees an error."""

from __future__ import annotations

import asyncio
import shutil
import socket
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import grpc
import inferwire_server
import pytest
from inferwire.v1 import generation_pb2, inference_pb2_grpc, model_pb2, model_pb2_grpc

from tests.polling import until
from tests.server_process import ServerProcess, server_process
from tests.serving import MODEL, error_info, request, retry_hint_ms

MISMATCH = "MODEL_MISMATCH"

pytestmark = pytest.mark.slow


def free_port() -> int:
    """A port that a server can be started on again and again."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.fixture
def next_release(tmp_path: Path) -> Path:
    """A folder with the next release of the server, whose scripted model says other things."""
    (here,) = inferwire_server.__path__
    release = tmp_path / "release"
    shutil.copytree(here, release / "inferwire_server", ignore=shutil.ignore_patterns("__pycache__"))
    model = release / "inferwire_server" / "engines" / "scripted" / "model.py"
    said = model.read_text()
    assert 'MODEL_VERSION = "1"' in said
    model.write_text(said.replace('MODEL_VERSION = "1"', 'MODEL_VERSION = "2"'))
    return release


def is_of_use_elsewhere(error: grpc.aio.AioRpcError) -> bool:
    """Whether a call that was not started may go to another server: hinted, or lost with its connection.

    A gRPC server that closes ends calls that it has not looked at as CANCELLED, without any details.
    """
    is_lost = not error.trailing_metadata() and error.code() in (
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.CANCELLED,
    )
    return is_lost or retry_hint_ms(error) is not None


class Visitor:
    """Calls one address again and again and notes who answered."""

    def __init__(self, address: str, fingerprint: str = "") -> None:
        self.channel = grpc.aio.insecure_channel(address, options=[("grpc.max_reconnect_backoff_ms", 200)])
        self.inference = inference_pb2_grpc.InferenceServiceStub(self.channel)
        self.models = model_pb2_grpc.ModelServiceStub(self.channel)
        self.message = request(max_output_tokens=4, expected_model={"fingerprint": fingerprint})
        self.answers: list[str] = []
        self.refusals: list[str] = []

    async def visit(self) -> None:
        """Until cancelled."""
        while True:
            try:
                answer = await self.inference.Generate(self.message, wait_for_ready=True, timeout=30)
                self.answers.append(answer.started.model_fingerprint)
            except grpc.aio.AioRpcError as error:
                if is_of_use_elsewhere(error):
                    await asyncio.sleep(0.02)
                else:
                    self.refusals.append(error_info(error).reason)

    async def fingerprint(self) -> str:
        answer = await self.models.GetModel(model_pb2.GetModelRequest(model=MODEL), wait_for_ready=True, timeout=30)
        return answer.model.fingerprint


async def stopped(server: ServerProcess) -> None:
    server.signal()
    assert await server.until_exit() == 0


async def test_a_pinned_caller_is_never_served_by_another_release(next_release: Path) -> None:
    port = free_port()
    address = f"127.0.0.1:{port}"
    async with server_process(port=port) as first:
        old = await Visitor(address).fingerprint()
        pinned, free = Visitor(address, fingerprint=old), Visitor(address)
        visits = [asyncio.create_task(visitor.visit()) for visitor in (pinned, free)]
        await until_longer(pinned.answers, free.answers)
        await stopped(first)
    async with server_process(port=port, packages=next_release) as second:
        new = await Visitor(address).fingerprint()
        assert new != old
        await until_longer(pinned.refusals, free.answers)
        await stopped(second)
    async with server_process(port=port):
        await until_longer(pinned.answers, free.answers)
        for visit in visits:
            visit.cancel()
        await asyncio.wait(visits)
    assert set(pinned.answers) == {old}
    assert set(pinned.refusals) == {MISMATCH}
    assert set(free.answers) == {old, new}
    assert free.refusals == []


async def until_longer(*growing: list[str]) -> None:
    """Wait until each of the lists has grown by three."""
    goals = [len(each) + 3 for each in growing]
    await until(lambda: all(len(each) >= goal for each, goal in zip(growing, goals, strict=True)), within_s=30)


class PlainClient:
    """Two addresses and the hints: nothing else is known of retrying."""

    def __init__(self, addresses: list[str]) -> None:
        options = [("grpc.initial_reconnect_backoff_ms", 100), ("grpc.max_reconnect_backoff_ms", 200)]
        channels = [grpc.aio.insecure_channel(address, options=options) for address in addresses]
        self.stubs = [inference_pb2_grpc.InferenceServiceStub(channel) for channel in channels]
        self.turn = 0

    async def stream(self, message: generation_pb2.GenerateRequest) -> int:
        """The tokens of a whole stream, from whichever server takes it."""
        async with asyncio.timeout(40):
            while True:
                call: Any = self.stubs[self.turn].StreamGenerate(message)
                try:
                    started = await call.read()
                except grpc.aio.AioRpcError as error:
                    await self.heed(error)
                    continue
                assert started.HasField("started")
                tokens, last = 0, started
                while (event := await call.read()) is not grpc.aio.EOF:
                    tokens, last = tokens + event.delta.token_count, event
                assert last.HasField("completed")
                return tokens

    async def heed(self, error: grpc.aio.AioRpcError) -> None:
        """Go to the other server when that is of use; anything else is an error."""
        if not is_of_use_elsewhere(error):
            raise error
        self.turn = 1 - self.turn
        await asyncio.sleep(max(retry_hint_ms(error) or 0, 20) / 1000)


async def test_a_rolling_restart_under_load_breaks_no_call() -> None:
    ports = [free_port(), free_port()]
    client = PlainClient([f"127.0.0.1:{port}" for port in ports])
    served: list[int] = []
    is_over = asyncio.Event()

    async def worker(number: int) -> None:
        while not is_over.is_set():
            tokens = 5 + number * 10
            served.append(await client.stream(request(max_output_tokens=tokens)))
            assert served[-1] == tokens

    async with AsyncExitStack() as processes:
        both = [await processes.enter_async_context(server_process(port=port)) for port in ports]
        workers = [asyncio.create_task(worker(number)) for number in range(6)]
        for server, port in zip(both, ports, strict=True):
            await grown(served, workers)
            await stopped(server)
            await grown(served, workers)
            await processes.enter_async_context(server_process(port=port))
            await grown(served, workers)
        is_over.set()
        async with asyncio.timeout(40):
            await asyncio.gather(*workers)
    assert len(served) > 60


async def grown(served: list[int], workers: list[asyncio.Task[None]], by: int = 12) -> None:
    """Wait until more calls were served; a worker that failed says why."""
    goal = len(served) + by
    await until(lambda: len(served) >= goal or any(worker.done() for worker in workers), within_s=40)
    for failed in filter(asyncio.Task.done, workers):
        failed.result()
