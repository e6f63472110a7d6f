"""inferwire: language models as typed gRPC.

The names below are the public surface; the generated messages and stubs are in `inferwire.v1`.
They are loaded when first used, so that the stubs alone cost no more than themselves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from inferwire._version import __version__

if TYPE_CHECKING:
    from inferwire.blocking_channel import BlockingResilientChannel
    from inferwire.blocking_client import BlockingTextStream, Client
    from inferwire.client import AsyncClient, TextStream
    from inferwire.credentials import Token
    from inferwire.errors import InferwireError
    from inferwire.observation import AttemptEnded, BreakerChanged, CallEnded, CallWaits, Observer
    from inferwire.propagation import serving
    from inferwire.replies import Chunk, Output, Reply
    from inferwire.resilient_channel import ResilientChannel, ResilientRpcError
    from inferwire.settings import ClientConfig, Region

_HOMES = {
    "AsyncClient": "client",
    "AttemptEnded": "observation",
    "BlockingResilientChannel": "blocking_channel",
    "BlockingTextStream": "blocking_client",
    "BreakerChanged": "observation",
    "CallEnded": "observation",
    "CallWaits": "observation",
    "Chunk": "replies",
    "Client": "blocking_client",
    "ClientConfig": "settings",
    "InferwireError": "errors",
    "Observer": "observation",
    "Output": "replies",
    "Region": "settings",
    "Reply": "replies",
    "ResilientChannel": "resilient_channel",
    "ResilientRpcError": "resilient_channel",
    "TextStream": "client",
    "Token": "credentials",
    "serving": "propagation",
}

__all__ = [
    "AsyncClient",
    "AttemptEnded",
    "BlockingResilientChannel",
    "BlockingTextStream",
    "BreakerChanged",
    "CallEnded",
    "CallWaits",
    "Chunk",
    "Client",
    "ClientConfig",
    "InferwireError",
    "Observer",
    "Output",
    "Region",
    "Reply",
    "ResilientChannel",
    "ResilientRpcError",
    "TextStream",
    "Token",
    "__version__",
    "serving",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'inferwire' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"inferwire.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
