"""Run the demonstration; the exit status is 1 when a gate is missed."""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
import time

from rich.console import Console

from tools.demo_regions.acts import Overdue, Play
from tools.demo_regions.envoy import EnvoyError, envoy
from tools.demo_regions.gates import BASELINE, gates
from tools.demo_regions.screen import live, summary
from tools.demo_regions.servers import SERVERS_EACH, ServerLost, regions_of_servers
from tools.demo_regions.tally import Book
from tools.demo_regions.traffic import Load, Traffic

REGIONS = ("eu", "us")
COMMON = {
    "METRICS_ENABLED": "false",
    "LOG_FORMAT": "json",
    # A canary would find a grey server out; the calls have to.
    "CANARY_INTERVAL": "3600",
}
SCRIPTED = {"ENGINE": "scripted", "ENGINE_OPTIONS": json.dumps({"step_base_s": 0.02, "max_running": 64})}
SCRIPTED_LOAD = Load(model="scripted", callers=4, unary_tokens=6, stream_tokens=60, pause_s=0.2)
OPENVINO = {"ENGINE": "openvino", "PROFILE": "exact"}
OPENVINO_LOAD = Load(model="smollm2-135m-instruct", callers=1, unary_tokens=2, stream_tokens=24, pause_s=0.2)


def main() -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(prog="demo_regions", description=__doc__)
    parser.add_argument(
        "--engine", choices=("scripted", "openvino"), default="scripted", help="openvino needs the model pulled"
    )
    arguments = parser.parse_args()
    console = Console()
    began = time.monotonic()
    # So that whoever ends it by SIGTERM leaves no server behind.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        is_met = asyncio.run(_perform(console, arguments.engine))
    except (EnvoyError, ServerLost, Overdue) as error:
        console.print(str(error), style="red", markup=False, highlight=False)
        return 1
    console.print(f"{time.monotonic() - began:.0f} s in all", highlight=False)
    return 0 if is_met else 1


async def _perform(console: Console, engine: str) -> bool:
    is_scripted = engine == "scripted"
    settings = COMMON | (SCRIPTED if is_scripted else OPENVINO)
    load = SCRIPTED_LOAD if is_scripted else OPENVINO_LOAD
    each = SERVERS_EACH if is_scripted else 1
    console.print(f"Starting {each} servers in each of the regions {' and '.join(REGIONS)}, and Envoy before them.")
    async with regions_of_servers(REGIONS, settings, each=each) as (near, far):
        addresses = [[server.address for server in region] for region in (near, far)]
        async with envoy(addresses) as proxy:
            book = Book(BASELINE)
            traffic = Traffic(load, book, near, far, proxy)
            play = Play(book, traffic, near, pace_s=3.0, patience_s=60.0 if is_scripted else 300.0)
            await traffic.learn()
            try:
                async with live(console, book, play, traffic), traffic.flowing():
                    await play.perform()
            finally:
                found = gates(book)
                summary(console, book, found)
    return all(gate.is_met for gate in found)


if __name__ == "__main__":
    sys.exit(main())
