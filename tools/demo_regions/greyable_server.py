"""A server of the demo: `inferwire serve` with settings from the environment, and a fault that it can be told to have.

SIGUSR1 makes it grey, SIGUSR2 makes it well again. A grey server says SERVING and refuses every generation.
"""

from __future__ import annotations

import asyncio
import signal
from dataclasses import replace
from typing import Any, cast

import uvloop
from inferwire_server.app.inference_server import InferenceServer
from inferwire_server.app.served_model import ServedModel, choose_model
from inferwire_server.domain.engine import Engine, EngineRequest, EngineSink, EngineStream
from inferwire_server.domain.errors import EngineDown
from inferwire_server.observability.logs import configure_logs
from inferwire_server.settings import load_settings


class GreyableEngine:
    """Implements Engine by another one. While it is grey it refuses what it is given, and its health says nothing."""

    def __init__(self, engine: Engine) -> None:
        self.is_grey = False
        self._engine = engine

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def submit(self, request: EngineRequest, sink: EngineSink) -> EngineStream:
        """Raises EngineDown while it is grey, else what the engine raises."""
        if self.is_grey:
            raise EngineDown("grey as demanded", retry_after_s=1.0)
        return self._engine.submit(request, sink)


def greyable(model: ServedModel) -> tuple[ServedModel, GreyableEngine]:
    """The model on an engine that can be made grey, and that engine."""
    engine = GreyableEngine(model.engine)
    return replace(model, engine=cast(Engine, engine)), engine


async def _serve() -> None:
    settings = load_settings({})
    configure_logs(settings.log_format, settings.log_level)
    model, engine = greyable(choose_model(settings))
    server = InferenceServer(settings, model)
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGUSR1, setattr, engine, "is_grey", True)
    loop.add_signal_handler(signal.SIGUSR2, setattr, engine, "is_grey", False)
    loop.add_signal_handler(signal.SIGTERM, server.drain)
    await server.start()
    await server.until_stopped()


if __name__ == "__main__":
    uvloop.run(_serve())
