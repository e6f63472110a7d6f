"""`make fuzz`, its requests: many random calls against a real server, reproducible by seed and number."""

from __future__ import annotations

import argparse
import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable

from inferwire_server.observability.logs import configure_logs

from tests.fuzz.credential_fuzzing import fuzz_credentials
from tests.fuzz.fuzzing import Findings, fuzz

_PART = 5_000
"""Calls of one server's life; each part has a fresh one."""


def main() -> int:
    """Returns the exit status: 0 when nothing was found."""
    options = _options()
    configure_logs("auto", "warning")
    seed: int = options.seed
    make = fuzz_credentials if options.credentials else fuzz
    if options.only is not None:
        return _report(make, seed, range(options.only, options.only + 1))
    began = time.monotonic()
    for start in range(0, options.requests, _PART):
        if _report(make, seed, range(start, min(start + _PART, options.requests))):
            return 1
        if time.monotonic() - began > options.seconds:
            print(f"stopped after {options.seconds:.0f} s")
            break
    return 0


def _report(make: Callable[[int, range], Awaitable[Findings]], seed: int, indices: range) -> int:
    began = time.monotonic()
    findings = asyncio.run(_made(make, seed, indices))
    print(f"seed {seed}, calls {indices.start} to {indices.stop - 1}, {time.monotonic() - began:.0f} s: {findings}")
    for fault in findings.faults[:20]:
        print(f"  {fault}")
    return 1 if findings.faults else 0


async def _made(make: Callable[[int, range], Awaitable[Findings]], seed: int, indices: range) -> Findings:
    return await make(seed, indices)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tools.fuzz_requests", description=__doc__)
    parser.add_argument("--requests", type=int, default=200_000)
    parser.add_argument("--credentials", action="store_true", help="with random credentials, at a secured server")
    parser.add_argument("--seconds", type=float, default=3600.0, help="begin no further part after that long")
    parser.add_argument("--seed", type=int, default=secrets.randbits(32), help="drawn when not given")
    parser.add_argument("--only", type=int, help="make the call of this number alone")
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
