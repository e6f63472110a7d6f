"""The worker is a process of its own that nobody is left with."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from inferwire_server.domain.engine import EngineState
from inferwire_server.domain.errors import EngineDown
from inferwire_server.engines.openvino.engine import OpenVinoEngine

from tests.engines.openvino.byte_model import tokens
from tests.engines.openvino.engines import byte_model_options, running
from tests.engines.openvino.requests import a_request, submitted, until
from tests.engines.openvino.table_model import Table, write_table_model

TABLE: Table = {token: {token: 5.0} for token in tokens("a")}
SERVER_THAT_HANGS = """
import asyncio, sys, time
from pathlib import Path
from tests.engines.openvino.engines import running, byte_model_options

async def main():
    async with running(byte_model_options(Path(sys.argv[1]))) as engine:
        print(engine.worker_pid, flush=True)
        {then}

asyncio.run(main())
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_table_model(tmp_path / "a.gguf", TABLE)


@pytest.mark.parametrize("is_stopped", [False, True], ids=["running", "stopped"])
async def test_the_worker_dies_with_its_parent(model: Path, is_stopped: bool) -> None:
    script = SERVER_THAT_HANGS.format(then="time.sleep(600)")
    parent = await asyncio.create_subprocess_exec(sys.executable, "-c", script, str(model), stdout=subprocess.PIPE)
    assert parent.stdout is not None
    worker = psutil.Process(int(await parent.stdout.readline()))
    if is_stopped:
        worker.suspend()

    parent.kill()
    await parent.wait()

    await until(lambda: not worker.is_running() or worker.status() == psutil.STATUS_ZOMBIE)


async def test_shutdown_leaves_no_process(model: Path) -> None:
    async with running(byte_model_options(model)) as engine:
        assert engine.worker_pid is not None
        worker = psutil.Process(engine.worker_pid)
        assert worker.is_running()

    assert not worker.is_running()


async def test_shutdown_is_not_held_up_by_a_stuck_worker(model: Path) -> None:
    async with running(byte_model_options(model)) as engine:
        assert engine.worker_pid is not None
        worker = psutil.Process(engine.worker_pid)
        _, recorder = submitted(engine, a_request(tokens("a"), 3000))
        worker.suspend()

    assert not worker.is_running()
    assert isinstance(recorder.failure, EngineDown)


async def test_a_model_that_cannot_be_loaded_is_said_at_start(tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF, or so it says")
    engine = OpenVinoEngine(byte_model_options(broken))

    with pytest.raises(EngineDown, match="could not be loaded: load failed"):
        await engine.start()

    assert engine.health().state is EngineState.DEAD
    assert engine.worker_pid is None
    await engine.shutdown(0)


async def test_a_worker_that_never_gets_ready_is_given_up(model: Path) -> None:
    engine = OpenVinoEngine(byte_model_options(model, start_timeout_s=0.01))

    with pytest.raises(EngineDown, match=r"not ready after 0.01 s"):
        await engine.start()


def test_the_event_loop_of_production_runs_it_too(model: Path) -> None:
    script = SERVER_THAT_HANGS.format(then="pass").replace("asyncio.run", "__import__('uvloop').run")

    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", script, str(model)],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )

    assert result.returncode == 0, result.stderr
    assert result.stderr == ""


def test_the_serving_process_does_not_import_openvino_and_the_worker_does_not_import_grpc() -> None:
    check = (
        "import sys, inferwire_server.engines.openvino.{module}; "
        "print(*sorted({{'openvino', 'openvino_genai', 'grpc', 'google.protobuf'}} & set(sys.modules)))"
    )

    imported = [
        subprocess.run([sys.executable, "-c", check.format(module=module)], capture_output=True, text=True, check=True)
        for module in ("engine", "worker")
    ]

    assert [result.stdout.split() for result in imported] == [[], ["openvino", "openvino_genai"]]
