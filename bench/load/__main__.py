"""`python -m bench.load`: open-loop load on a server of this machine, figures as JSON."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import uvloop
from inferwire.v1 import generation_pb2

from bench.load.caller import CallOptions
from bench.load.open_loop import TargetError, first_model, require_loopback, run
from bench.load.report import report
from bench.load.schedule import Schedule
from bench.simulation.workload import (
    FIRST_TOKEN_TARGET_S,
    LONGEST_PROMPT,
    MAX_OUTPUT_TOKENS,
    RPC_DEADLINE_S,
    SHORTEST_PROMPT,
)

PRIORITIES = ("interactive", "standard", "batch")


def main(arguments: list[str] | None = None) -> int:
    """Exit 0 with figures, whatever the server answered; 2 when no load can be made."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.rate <= 0.0 or options.duration <= options.warm_up or options.channels < 1:
        parser.error("--rate and --channels must be above 0, and --duration above --warm-up")
    if options.burst_size < 1 or (options.mean_output_tokens is not None and options.mean_output_tokens <= 1.0):
        parser.error("--burst-size must be at least 1 and --mean-output-tokens above 1")
    try:
        require_loopback(options.target)
        figures = uvloop.run(_measure(options))
    except TargetError as error:
        sys.stderr.write(f"bench.load: {error}\n")
        return 2
    text = json.dumps(figures, indent=2)
    if options.output is None:
        sys.stdout.write(text + "\n")
    else:
        options.output.write_text(text + "\n", encoding="utf-8")
    return 0


async def _measure(options: argparse.Namespace) -> dict[str, Any]:
    schedule = Schedule(
        seed=options.seed,
        rate=options.rate,
        duration_s=options.duration,
        burst_size=options.burst_size,
        burst_spacing_s=options.burst_spacing_ms / 1000.0,
        prompt_tokens=tuple(options.prompt_tokens),
        deadline_s=tuple(options.deadline),
        mean_output_tokens=options.mean_output_tokens,
    )
    target_s = options.first_token_target or None
    call_options = CallOptions(
        model=options.model or await first_model(options.target),
        seed=options.seed,
        max_output_tokens=options.max_output_tokens,
        first_token_target_s=target_s,
        priority=generation_pb2.Priority.Value(f"PRIORITY_{options.priority.upper()}"),
        tenant=options.tenant,
    )
    records = await run(options.target, schedule.shots(), call_options, channels=options.channels)
    workload = {name: value for name, value in vars(options).items() if name != "output"}
    figures = report(records, duration_s=options.duration, warm_up_s=options.warm_up, first_token_target_s=target_s)
    return {"workload": workload | {"model": call_options.model}} | figures


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.load", description=__doc__)
    add = parser.add_argument
    add("--target", default="127.0.0.1:50051", help="host:port on this machine, or unix:path (default: %(default)s)")
    add("--model", default="", help="default: the first model that the server lists")
    add("--rate", type=float, default=10.0, help="calls a second on average (default: %(default)s)")
    add("--duration", type=float, default=30.0, help="seconds of arrivals (default: %(default)s)")
    add("--warm-up", type=float, default=0.0, help="seconds at the start that do not count (default: %(default)s)")
    add("--seed", type=int, default=1, help="same seed, same calls (default: %(default)s)")
    add("--burst-size", type=int, default=1, help="calls that arrive together; 1 is Poisson (default: %(default)s)")
    add("--burst-spacing-ms", type=float, default=0.0, help="between the calls of a burst (default: %(default)s)")
    add(
        "--prompt-tokens",
        type=int,
        nargs=2,
        metavar=("MIN", "MAX"),
        default=[SHORTEST_PROMPT, LONGEST_PROMPT],
        help="uniform (default: %(default)s)",
    )
    add("--max-output-tokens", type=int, default=MAX_OUTPUT_TOKENS, help="as the server is told (default: %(default)s)")
    add(
        "--mean-output-tokens",
        type=float,
        help="callers hang up after a geometric number of tokens with this mean, which the server is not told "
        "(default: they read until the server ends the output)",
    )
    add(
        "--deadline",
        type=float,
        nargs=2,
        metavar=("MIN", "MAX"),
        default=[RPC_DEADLINE_S, RPC_DEADLINE_S],
        help="seconds, uniform (default: %(default)s)",
    )
    add(
        "--first-token-target",
        type=float,
        default=FIRST_TOKEN_TARGET_S,
        help="seconds; what counts as good; 0 for none (default: %(default)s)",
    )
    add("--priority", choices=PRIORITIES, default="standard", help="default: %(default)s")
    add("--tenant", default="", help="as whom to call (default: anonymous)")
    add("--channels", type=int, default=1, help="connections to spread the calls over (default: %(default)s)")
    add("--output", type=Path, help="file for the JSON (default: standard output)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
