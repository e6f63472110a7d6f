"""`python -m bench.client`: what the client costs, and what callers see of losses."""

from __future__ import annotations

import asyncio

from bench.client import losses, overhead
from bench.figures import COLUMNS
from bench.tables import table


async def main() -> None:
    """Measure and print."""
    figures = [*await overhead.measure(), *await losses.measure()]
    print(table("The resilient client", COLUMNS, [figure.cells() for figure in figures]))


asyncio.run(main())
