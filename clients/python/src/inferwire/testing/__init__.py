"""A fake inferwire server for tests of code that calls one: it says what a script tells it to, and breaks when told.

It needs nothing beyond the base installation and knows no model. Real gRPC on a loopback socket::

    async with fake_server(Script(tokens=("Hello", " world"))) as server, AsyncClient(server.address) as client:
        reply = await client.generate("hi")
    assert reply.text == "Hello world"
"""

from inferwire.testing.fake_server import FakeServer, Received, blocking_fake_server, fake_server
from inferwire.testing.script import (
    MODEL,
    PROXY_RESET,
    RESET,
    BareStatus,
    Refusal,
    Script,
    Silence,
    Truncation,
    token_id,
)

__all__ = [
    "MODEL",
    "PROXY_RESET",
    "RESET",
    "BareStatus",
    "FakeServer",
    "Received",
    "Refusal",
    "Script",
    "Silence",
    "Truncation",
    "blocking_fake_server",
    "fake_server",
    "token_id",
]
