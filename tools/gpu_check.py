"""The first hour on a GPU: checks TensorRT-LLM against the record, runs the suite, measures, writes one report.

    python -m tools.gpu_check --model CHECKPOINT_FOLDER [--report gpu-report.json] [--skip-suite]

Runs in the root of a checkout, inside the image of docker/Dockerfile.gpu with pytest, pytest-asyncio, pytest-timeout,
hypothesis and jsonschema added. Exit status 0 when everything is as promised, 1 when something is not, 2 when it cannot
run, 70 when the engine died; the report then says how far it came.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

from inferwire_server.domain.engine import EngineEvent, EngineRequest, Failed, Finished, Tokens
from inferwire_server.domain.errors import EngineDown
from inferwire_server.domain.generation import Sampling
from inferwire_server.engines.tensorrt_llm.checkpoint import Checkpoint, read_checkpoint
from inferwire_server.engines.tensorrt_llm.engine import TensorRTEngine
from inferwire_server.engines.tensorrt_llm.installation import require_installed
from inferwire_server.engines.tensorrt_llm.options import Options
from inferwire_server.observability.gpus import GpuReader

from tests.engines.tensorrt_llm.recorded_names import differences, recorded

_PACKAGES = (
    "tensorrt-llm",
    "torch",
    "protobuf",
    "numpy",
    "transformers",
    "tokenizers",
    "llguidance",
    "grpcio",
    "uvloop",
)
_SUITE = "tests/engines/tensorrt_llm/gpu"
_BOUND_S = 300.0
_ids = itertools.count()


class Heard:
    """The events of one stream, with their times."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.events: list[tuple[float, EngineEvent]] = []
        self._ended = asyncio.Event()
        self._has_tokens = asyncio.Event()

    def __call__(self, event: EngineEvent) -> None:
        self.events.append((time.monotonic() - self.began, event))
        if isinstance(event, Tokens):
            self._has_tokens.set()
        else:
            self._ended.set()
            self._has_tokens.set()

    @property
    def tokens(self) -> list[int]:
        return [token for _, event in self.events if isinstance(event, Tokens) for token in event.token_ids]

    @property
    def first_token_s(self) -> float | None:
        return next((moment for moment, event in self.events if isinstance(event, Tokens)), None)

    async def begun(self) -> None:
        await asyncio.wait_for(self._has_tokens.wait(), _BOUND_S)

    async def ended(self) -> EngineEvent:
        await asyncio.wait_for(self._ended.wait(), _BOUND_S)
        return self.events[-1][1]


class Observations:
    """What a running engine shows; each answers one open question of the record."""

    def __init__(self, engine: TensorRTEngine, checkpoint: Checkpoint) -> None:
        self._engine = engine
        self._size = checkpoint.vocabulary_size
        self._context = engine.capabilities.max_context_tokens

    def request(self, length: int = 32, **changes: Any) -> EngineRequest:
        prompt = tuple(self._size // 4 + (7 * step) % (self._size // 2) for step in range(length))
        values: dict[str, Any] = {
            "id": f"check-{next(_ids)}",
            "prompt_token_ids": prompt,
            "max_output_tokens": 64,
            "sampling": Sampling(temperature=0.0),
            "ignore_end_of_sequence": True,
        }
        return EngineRequest(**{**values, **changes})

    async def ended(self, request: EngineRequest) -> Heard:
        heard = Heard()
        self._engine.submit(request, heard)
        event = await heard.ended()
        if isinstance(event, Failed):
            raise event.error
        return heard

    async def first_token_and_rate(self) -> dict[str, Any]:
        heard = await self.ended(self.request())
        total, first = heard.events[-1][0], heard.first_token_s or 0.0
        return {"first_token_s": first, "tokens_per_s": (len(heard.tokens) - 1) / max(total - first, 1e-9)}

    async def greedy_repeats(self) -> dict[str, Any]:
        outputs = [(await self.ended(self.request())).tokens for _ in range(3)]
        return {"equal": outputs[0] == outputs[1] == outputs[2]}

    async def cached_prefix_is_counted_and_salted(self) -> dict[str, Any]:
        length = min(256, self._context // 2)
        counts = []
        for namespace in ("1:a:", "1:a:", "1:b:"):
            request = self.request(length, cache_namespace=namespace, max_output_tokens=4)
            event = (await self.ended(request)).events[-1][1]
            counts.append(event.cached_tokens if isinstance(event, Finished) else None)
        if not (counts[0] == counts[2] == 0 and counts[1]):
            raise AssertionError(f"cached tokens {counts}, expected 0, some, 0")
        return {"cached_tokens": counts}

    async def cancel_is_acknowledged(self) -> dict[str, Any]:
        heard = Heard()
        stream = self._engine.submit(self.request(max_output_tokens=self._context // 2), heard)
        await heard.begun()
        asked = time.monotonic()
        stream.cancel()
        event = await heard.ended()
        overdue = self._engine.load().extra["overdue_requests"]
        return {"ended_as": type(event).__name__, "after_s": time.monotonic() - asked, "unacknowledged": bool(overdue)}

    async def a_batch_with_and_without_logprobs(self) -> dict[str, Any]:
        heard = [Heard() for _ in range(4)]
        for number, each in enumerate(heard):
            self._engine.submit(self.request(top_logprobs=2 if number % 2 else None), each)
        outcomes = [type(await each.ended()).__name__ for each in heard]
        if set(outcomes) != {"Finished"}:
            raise AssertionError(f"outcomes {outcomes}")
        return {"outcomes": outcomes}

    async def a_full_batch(self) -> dict[str, Any]:
        count = self._engine.capabilities.max_running
        heard = [Heard() for _ in range(count)]
        began = time.monotonic()
        for each in heard:
            self._engine.submit(self.request(), each)
        for each in heard:
            await each.ended()
        tokens = sum(len(each.tokens) for each in heard)
        batches = self._engine.load().extra["delivered_batches"]
        return {"streams": count, "tokens_per_s": tokens / (time.monotonic() - began), "delivered_batches": batches}

    async def statistics_arrive(self) -> dict[str, Any]:
        await self.ended(self.request())
        return {name: value for name, value in self._engine.load().extra.items() if not name.startswith("gpu")}


async def observe(checkpoint: Checkpoint, results: dict[str, Any], exit_process: Callable[[int], object]) -> None:
    """Load once, ask every question, shut down; an answer that fails does not silence the others."""
    options = Options(max_batch_size=16, kv_cache_memory_fraction=0.5, logprobs=True, exit_s=3.0)
    engine = TensorRTEngine(checkpoint, options, exit_process=exit_process)
    began = time.monotonic()
    await engine.start()
    results["load"] = {"ok": True, "seconds": time.monotonic() - began}
    observations = Observations(engine, checkpoint)
    questions: list[Callable[[], Awaitable[dict[str, Any]]]] = [
        observations.first_token_and_rate,
        observations.greedy_repeats,
        observations.cached_prefix_is_counted_and_salted,
        observations.cancel_is_acknowledged,
        observations.statistics_arrive,
        observations.a_full_batch,
        observations.a_batch_with_and_without_logprobs,
    ]
    for question in questions:
        name = getattr(question, "__name__", "")
        try:
            results[name] = {"ok": True, **await question()}
        except Exception as error:  # noqa: BLE001 - the report is for finding out
            results[name] = {"ok": False, "error": f"{type(error).__name__}: {error}"}
    began = time.monotonic()
    await engine.shutdown(grace_s=5.0)
    results["shutdown"] = {"ok": True, "seconds": time.monotonic() - began}


def environment() -> dict[str, Any]:
    """Versions and GPUs."""
    versions: dict[str, str | None] = {}
    for name in _PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = None
    return {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "packages": versions,
        "gpus": [asdict(reading) for reading in GpuReader().read()],
    }


def run_suite(model: Path) -> dict[str, Any]:
    """The tests marked gpu."""
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "-q", "-p", "no:cacheprovider", _SUITE]
    done = subprocess.run(
        command, env={**os.environ, "INFERWIRE_GPU_MODEL": str(model)}, capture_output=True, text=True, check=False
    )
    return {"ok": done.returncode == 0, "exit_status": done.returncode, "summary": done.stdout.splitlines()[-25:]}


def check(model: Path, report_file: Path, *, with_suite: bool) -> bool:
    """Write the report; whether everything is as promised."""
    found = differences(recorded(), is_whole=False)
    observations: dict[str, Any] = {}
    report: dict[str, Any] = {
        "ok": False,
        "environment": environment(),
        "names": {
            "ok": not any(difference.is_certain for difference in found),
            "differences": [str(difference) for difference in found],
        },
        "observations": observations,
    }

    def write() -> None:
        report_file.write_text(json.dumps(report, indent=1) + "\n")

    def leave(code: int) -> None:
        report["engine_died"] = True
        write()
        os._exit(code)

    asyncio.run(observe(read_checkpoint(model), observations, leave))
    if with_suite:
        report["suite"] = run_suite(model)
    parts = [report["names"], report.get("suite", {"ok": True}), *observations.values()]
    report["ok"] = all(part["ok"] for part in parts)
    write()
    return bool(report["ok"])


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", type=Path, required=True, help="checkpoint folder of a small model")
    parser.add_argument("--report", type=Path, default=Path("gpu-report.json"))
    parser.add_argument("--skip-suite", action="store_true", help="observe only; the suite takes several loads")
    arguments = parser.parse_args()
    try:
        require_installed()
        is_ok = check(arguments.model, arguments.report, with_suite=not arguments.skip_suite)
    except EngineDown as error:
        print(error, file=sys.stderr)
        return 2
    print(f"{arguments.report}: {'as promised' if is_ok else 'NOT as promised'}")
    return 0 if is_ok else 1


if __name__ == "__main__":
    sys.exit(main())
