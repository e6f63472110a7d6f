"""A server under everything at once for minutes: half of the streams cancelled, ids reused, readers that stall.

Fails when memory, descriptors, threads or KV blocks do not come back to where they were after the warm-up.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import sys
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import grpc
from inferwire.v1 import generation_pb2, inference_pb2_grpc, operations_pb2, operations_pb2_grpc

ALLOWED_GROWTH_MIB = 20
ALLOWED_MORE_DESCRIPTORS = 8
STREAMS_AT_ONCE = 24
STALLED_READERS = 2
WARM_UP_SHARE = 0.2
QUIET_LIMIT_S = 30.0
GREEDY = generation_pb2.SamplingOptions(temperature=0.0)
LARGE = generation_pb2.OutputOptions(token_ids=True, top_logprobs=20)
SMALL_WINDOW = [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 16384)]
"""So that a reader that stalls is felt by the server after kilobytes."""


@dataclass(frozen=True)
class Footprint:
    """What a process holds."""

    rss_mib: float
    descriptors: int
    threads: int

    @classmethod
    def of(cls, pid: int) -> Footprint:
        """Read it from /proc."""
        status = dict(
            line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line
        )
        return cls(
            rss_mib=int(status["VmRSS"].split()[0]) / 1024,
            descriptors=len(os.listdir(f"/proc/{pid}/fd")),
            threads=int(status["Threads"]),
        )


class Soak:
    """Drives one server."""

    def __init__(self, channel: grpc.aio.Channel, draw: random.Random) -> None:
        self._inference = inference_pb2_grpc.InferenceServiceStub(channel)
        self._operations = operations_pb2_grpc.OperationsServiceStub(channel)
        self._draw = draw
        self._ids: list[tuple[str, str]] = []
        self.ended: Counter[str] = Counter()

    async def load(self, until: float) -> None:
        """Keep the server busy until a monotonic time."""
        stalled = [asyncio.create_task(self._stall(until)) for _ in range(STALLED_READERS)]
        async with asyncio.TaskGroup() as group:
            for _ in range(STREAMS_AT_ONCE):
                group.create_task(self._caller(until))
        for task in stalled:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def quiet(self) -> operations_pb2.Load:
        """The load once nothing runs or waits any more."""
        limit = time.monotonic() + QUIET_LIMIT_S
        while True:
            load = (await self._operations.GetServerStatus(operations_pb2.GetServerStatusRequest())).load
            if not load.running and not load.waiting:
                return load
            if time.monotonic() > limit:
                raise SystemExit(f"still {load.running} running and {load.waiting} waiting {QUIET_LIMIT_S:.0f} s later")
            await asyncio.sleep(0.1)

    async def _caller(self, until: float) -> None:
        while time.monotonic() < until:
            with suppress(asyncio.CancelledError):
                await self._stream(self._request())

    async def _stream(self, request: generation_pb2.GenerateRequest) -> None:
        leaves_after = self._draw.randrange(request.max_output_tokens) if self._draw.random() < 0.5 else None
        call = self._inference.StreamGenerate(request, timeout=60)
        try:
            seen = 0
            while (event := await call.read()) is not grpc.aio.EOF:
                seen += cast("generation_pb2.StreamGenerateResponse", event).delta.token_count
                if leaves_after is not None and seen > leaves_after:
                    call.cancel()
                    self.ended["left"] += 1
                    return
            self.ended["whole"] += 1
        except grpc.aio.AioRpcError as error:
            self.ended[error.code().name] += 1

    def _request(self) -> generation_pb2.GenerateRequest:
        draw = self._draw
        if self._ids and draw.random() < 0.2:
            request_id, prompt = draw.choice(self._ids)
        else:
            request_id, prompt = f"soak-{draw.getrandbits(64):x}", f"{draw.choice('abc') * draw.randint(1, 800)} go"
            self._ids = [*self._ids[-50:], (request_id, prompt)]
        return generation_pb2.GenerateRequest(
            model="scripted", prompt=prompt, request_id=request_id, max_output_tokens=60, sampling=GREEDY
        )

    async def _stall(self, until: float) -> None:
        """Read one event, then nothing, until the server has had enough; again and again."""
        while time.monotonic() < until:
            request = generation_pb2.GenerateRequest(
                model="scripted", prompt="stall", max_output_tokens=4000, output=LARGE
            )
            call = self._inference.StreamGenerate(request, timeout=20)
            try:
                await call.read()
                await asyncio.sleep(min(8.0, max(0.0, until - time.monotonic())))
                while await call.read() is not grpc.aio.EOF:
                    pass
            except grpc.aio.AioRpcError as error:
                self.ended[f"stalled: {error.code().name}"] += 1
            finally:
                call.cancel()


async def soak(minutes: float, seed: int) -> int:
    """Run it; returns the exit status."""
    process, address = await _serve()
    try:
        async with grpc.aio.insecure_channel(address, options=SMALL_WINDOW) as channel:
            driver = Soak(channel, random.Random(seed))  # noqa: S311 a seeded workload
            seconds = minutes * 60
            await driver.load(time.monotonic() + seconds * WARM_UP_SHARE)
            blocks_before = (await driver.quiet()).kv_utilization
            before = Footprint.of(process.pid)
            driver.ended.clear()
            await driver.load(time.monotonic() + seconds * (1 - WARM_UP_SHARE))
            blocks_after = (await driver.quiet()).kv_utilization
            after = Footprint.of(process.pid)
    finally:
        process.send_signal(signal.SIGTERM)
        await asyncio.wait_for(process.wait(), 30)
    growth = after.rss_mib - before.rss_mib
    print(
        f"{minutes:g} minutes, seed {seed}: {dict(driver.ended)}; "
        f"memory {before.rss_mib:.1f} to {after.rss_mib:.1f} MiB ({growth:+.1f}); "
        f"descriptors {before.descriptors} to {after.descriptors}; threads {before.threads} to {after.threads}; "
        f"KV in use {blocks_before:.4f} to {blocks_after:.4f}; exit {process.returncode}"
    )
    is_clean = (
        growth <= ALLOWED_GROWTH_MIB
        and after.descriptors <= before.descriptors + ALLOWED_MORE_DESCRIPTORS
        and after.threads <= before.threads + 2
        and blocks_after <= blocks_before
        and process.returncode == 0
        and driver.ended["whole"] > 0
        and not {"INTERNAL", "UNKNOWN"} & driver.ended.keys()
    )
    print("clean" if is_clean else "NOT clean")
    return 0 if is_clean else 1


async def _serve() -> tuple[asyncio.subprocess.Process, str]:
    command = [sys.executable, "-m", "inferwire_server", "serve", "--engine", "scripted", "--port", "0", "--no-metrics"]
    options = {
        "INFERWIRE_ENGINE_OPTIONS": '{"step_base_s": 0.004, "kv_blocks": 4096}',
        "INFERWIRE_STALL_TIME": "3",
        "INFERWIRE_REPLAY_TIME": "5",
        "INFERWIRE_DRAIN_SETTLE": "0",
    }
    process = await asyncio.create_subprocess_exec(
        *command, "--log-format", "json", env=os.environ | options, stderr=asyncio.subprocess.PIPE
    )
    address = await asyncio.wait_for(_address(process), 60)
    return process, address


async def _address(process: asyncio.subprocess.Process) -> str:
    """From the server's own log, once it is ready; the rest of the log is read and dropped."""
    address = ""
    assert process.stderr is not None  # noqa: S101 it was asked for
    while line := await process.stderr.readline():
        if b'"listening"' in line:
            address = line.decode().split('"address": "')[1].split('"')[0]
        if b'"ready"' in line:
            _draining.add(asyncio.create_task(_drop(process.stderr)))
            return address
    raise SystemExit("the server ended before it was ready")


_draining: set[asyncio.Task[None]] = set()


async def _drop(stream: asyncio.StreamReader) -> None:
    while await stream.read(65536):
        pass


def main() -> int:
    """Parse and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    return asyncio.run(soak(arguments.minutes, arguments.seed))


if __name__ == "__main__":
    raise SystemExit(main())
