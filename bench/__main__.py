"""`make bench`: the goals, as ratios within one run, as a table and as JSON in bench/results/."""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import psutil

from bench.client import losses, overhead
from bench.figures import COLUMNS, Figure
from bench.serving import real_model, request_cost, token_cost
from bench.tables import table

RESULTS = Path(__file__).parent / "results"
PARTS: dict[str, tuple[str, Callable[[], Awaitable[list[Figure]]]]] = {
    "requests": ("What the layers above the engine cost", request_cost.measure),
    "serving": ("Serving against a bare grpc.aio server with the same contract", token_cost.measure),
    "model": ("The real model on the CPU engine", real_model.measure),
    "client": ("The resilient client against the bare stub", overhead.measure),
    "losses": ("What callers see of lost servers", losses.measure),
}
"""Simulated admission and sharing have a program of their own: `python -m bench.simulation`."""


async def main() -> None:
    """Measure what was asked for, print it and write it down."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=PARTS, action="append", help="may be repeated; default: everything")
    names = parser.parse_args().only or list(PARTS)
    print(f"{platform.machine()}, {psutil.cpu_count()} cores, load {psutil.getloadavg()[0]:.1f}\n")
    results: dict[str, list[dict[str, object]]] = {}
    for name in names:
        title, measure = PARTS[name]
        figures = await measure()
        print(table(title, COLUMNS, [figure.cells() for figure in figures]), flush=True)
        results[name] = [figure.as_json() for figure in figures]
    RESULTS.mkdir(exist_ok=True)
    file = RESULTS / f"{time.strftime('%Y-%m-%d-%H%M%S')}.json"
    file.write_text(json.dumps(results, indent=1), encoding="utf-8")
    print(f"Written to bench/results/{file.name}")


if __name__ == "__main__":
    asyncio.run(main())
