"""The metrics that a server has, as its page names them, without a GPU."""

from __future__ import annotations

import asyncio
import functools

from inferwire_server.app.inference_server import InferenceServer
from inferwire_server.app.served_model import scripted_model
from inferwire_server.engines.scripted import ScriptedEngine
from inferwire_server.settings import Settings


@functools.cache
def metric_names() -> frozenset[str]:
    """Names of families; a counter's without `_total`."""
    return asyncio.run(_collect())


async def _collect() -> frozenset[str]:
    engine = ScriptedEngine()
    server = InferenceServer(Settings(port=0, metrics_enabled=False), scripted_model(engine, 4096))
    names = frozenset(family.name for family in server.metrics.registry.collect())
    await server.close()
    return names
