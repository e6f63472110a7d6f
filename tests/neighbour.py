"""A healthy stream that runs beside a test and must not notice it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.serving import Serving, request, text_of


@asynccontextmanager
async def neighbour(server: Serving, output_tokens: int = 64) -> AsyncIterator[None]:
    """Run one greedy stream beside the body; its text must equal a run of its own."""
    message = request("The quick brown fox", sampling={"temperature": 0.0}, max_output_tokens=output_tokens)
    alone = await text_of(server.inference.StreamGenerate(message))
    beside = asyncio.create_task(text_of(server.inference.StreamGenerate(message)), name="neighbour")
    try:
        yield
        async with asyncio.timeout(30):
            assert await beside == alone
    finally:
        beside.cancel()
