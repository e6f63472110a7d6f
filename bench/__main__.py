"""`make bench`: the goals, as ratios within one run, as tables and as JSON in bench/results/."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import uvloop

from bench.client import affinity, hedging, losses, overhead
from bench.figures import COLUMNS, Figure
from bench.serving import engine_rate, first_token, identity_cost, overload, request_cost, structured_rate, token_cost
from bench.tables import table

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True, slots=True)
class Part:
    """One table. `run` is the event loop of the measuring process."""

    title: str
    measure: Callable[[], Awaitable[list[Figure]]]
    run: Callable[[Any], list[Figure]] = uvloop.run


PARTS = {
    "requests": Part("What the layers above the engine cost", request_cost.measure),
    "tokens": Part("Server CPU over a bare grpc.aio server with the same contract", token_cost.measure),
    "security": Part("What knowing the caller costs", identity_cost.measure),
    "engine": Part("The real model: the service over its engine alone", engine_rate.measure),
    "first-token": Part("The real model: the first token", first_token.measure),
    "structured": Part("Structured output", structured_rate.measure),
    "overload": Part("Twice the capacity, on real processes", overload.measure),
    "client": Part("The resilient client over the bare stub", overhead.measure, asyncio.run),
    "hedging": Part("First tokens of which a few are slow", hedging.measure, asyncio.run),
    "affinity": Part("Prefix caches of four servers", affinity.measure, asyncio.run),
    "losses": Part("What callers see of lost servers", losses.measure, asyncio.run),
}
"""Simulated admission and sharing have a program of their own: `python -m bench.simulation`."""


def main() -> None:
    """Measure what was asked for, print it and write it down."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--only", choices=PARTS, action="append", help="may be repeated; default: everything")
    names = parser.parse_args().only or list(PARTS)
    # gRPC's remark on every process that is started while it has threads.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    print(f"{platform.machine()}, {psutil.cpu_count()} cores, load {psutil.getloadavg()[0]:.1f}\n")
    results: dict[str, list[dict[str, Any]]] = {}
    for name in names:
        part = PARTS[name]
        began = time.monotonic()
        figures = part.run(part.measure())
        print(table(part.title, COLUMNS, [figure.cells() for figure in figures]))
        print(f"{time.monotonic() - began:.0f} s, load {psutil.getloadavg()[0]:.1f}\n", flush=True)
        results[name] = [figure.as_json() for figure in figures]
    RESULTS.mkdir(exist_ok=True)
    file = RESULTS / f"{time.strftime('%Y-%m-%d-%H%M%S')}.json"
    file.write_text(json.dumps(results, indent=1), encoding="utf-8")
    print(f"Written to bench/results/{file.name}")


if __name__ == "__main__":
    main()
