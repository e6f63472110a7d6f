"""Loading and unloading, each on a thread that may be lost: both can take minutes, and both can hang."""

from __future__ import annotations

import asyncio
import sys
import threading
from typing import NamedTuple

import structlog

from inferwire_server.domain.errors import EngineDown
from inferwire_server.engines.tensorrt_llm.checkpoint import Checkpoint
from inferwire_server.engines.tensorrt_llm.engine_loop import EngineLoop, post_to
from inferwire_server.engines.tensorrt_llm.installation import Installation, load_installation
from inferwire_server.engines.tensorrt_llm.llm_arguments import llm_arguments
from inferwire_server.engines.tensorrt_llm.options import Options
from inferwire_server.engines.tensorrt_llm.surface import Llm

_log = structlog.get_logger("inferwire.engine.tensorrt_llm")


class LoadedModel(NamedTuple):
    """The package and the engine object."""

    installation: Installation
    llm: Llm


async def load(loop: EngineLoop, checkpoint: Checkpoint, options: Options) -> LoadedModel:
    """Start the engine's thread, import the package and load the model there.

    Raises EngineDown, and TimeoutError after `start_timeout_s`, when the thread is still busy.
    """
    serving = asyncio.get_running_loop()
    loaded: asyncio.Future[LoadedModel] = serving.create_future()

    def settle(result: LoadedModel | EngineDown) -> None:
        if loaded.done():
            return
        if isinstance(result, EngineDown):
            loaded.set_exception(result)
        else:
            loaded.set_result(result)

    loop.start(lambda: post_to(serving, settle, _load(checkpoint, options)))
    return await asyncio.wait_for(loaded, options.start_timeout_s)


async def unload(llm: Llm, timeout_s: float) -> bool:
    """Whether the engine let go of everything in time."""
    serving = asyncio.get_running_loop()
    done = asyncio.Event()

    def shut_down() -> None:
        try:
            llm.shutdown()
        except Exception as error:  # noqa: BLE001 - it is going anyway
            _log.warning("engine teardown failed", error=repr(error))
        post_to(serving, done.set)

    threading.Thread(target=shut_down, name="inferwire-unload", daemon=True).start()
    try:
        await asyncio.wait_for(done.wait(), timeout_s)
    except TimeoutError:
        return False
    return True


def _load(checkpoint: Checkpoint, options: Options) -> LoadedModel | EngineDown:
    hook = sys.excepthook  # the package puts its own in place, which shuts engines down
    try:
        installation = load_installation()
        return LoadedModel(installation, installation.llm(**llm_arguments(checkpoint, options, installation)))
    except EngineDown as error:
        return error
    except Exception as error:  # noqa: BLE001 - whatever stops the model from loading is one kind of answer
        _log.error("model not loaded", exc_info=error)
        return EngineDown(f"engine unavailable: TensorRT-LLM could not load the model: {error}")
    finally:
        sys.excepthook = hook
