"""Proxyless gRPC: the client calls `xds:///llm`, and a control plane says which servers of which regions that is."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from tests.polling import until
from tests.server_process import HANG_BOUND_S, ServerProcess, server_process
from tests.system.xds_control_plane import NAME, bootstrap_of, control_plane

ENOUGH = 30
PACE = {"step_base_s": 0.01}


def answered(server: ServerProcess) -> int:
    """Generations that its log tells of."""
    return sum(line.get("event") == "call" and "Generate" in line["method"] for line in server.log)


@asynccontextmanager
async def caller_of(target: str, bootstrap: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    """A process that calls until its input ends."""
    caller = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.system.xds_caller", target),
        env=dict(os.environ) | {"GRPC_XDS_BOOTSTRAP": str(bootstrap)},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        yield caller
    finally:
        with suppress(ProcessLookupError):
            caller.kill()
        await caller.wait()


@pytest.mark.slow
@pytest.mark.timeout(180)
async def test_when_every_server_of_the_near_region_stops_the_far_one_serves_without_an_error(tmp_path: Path) -> None:
    async with (
        server_process(engine_options=PACE) as near,
        server_process(engine_options=PACE) as far,
        control_plane([[near.address], [far.address]]) as address,
        caller_of(f"xds:///{NAME}", bootstrap_of(tmp_path, address)) as caller,
    ):
        await until(lambda: answered(near) >= ENOUGH, within_s=60)
        assert answered(far) == 0
        near.signal(signal.SIGKILL)
        await until(lambda: answered(far) >= ENOUGH, within_s=60)
        async with asyncio.timeout(HANG_BOUND_S):
            output, _ = await caller.communicate(b"")

    told = json.loads(output)
    outcomes = told["outcomes"]
    assert set(outcomes) == {"streams", "resumed", "unary"}
    assert outcomes["resumed"] > 0
    assert len(told["texts"]) == 1, "a resumed stream has other text than one that nothing disturbed"
