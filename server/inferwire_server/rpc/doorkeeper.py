"""Who calls, and whether they may: what the transport has proved, put before `security`, which knows no gRPC."""

from __future__ import annotations

from functools import partial
from typing import Any

import grpc

from inferwire_server.domain.caller import ANONYMOUS, Caller
from inferwire_server.domain.errors import Unauthenticated
from inferwire_server.rpc.call import Metadata
from inferwire_server.security.authorisation import Authorisation, is_open
from inferwire_server.security.identity import AUTHORIZATION_KEY, Identity, caller_from_metadata

Context = grpc.aio.ServicerContext[Any, Any]
_PROPERTIES = ("peer_spiffe_id", "x509_subject")


class Doorkeeper:
    """Without an identity everybody may do everything, and `is_local` believes the tenant that they say."""

    def __init__(self, authorisation: Authorisation, identity: Identity | None, *, is_local: bool) -> None:
        self._authorisation = authorisation
        self._identity = identity
        self._is_local = is_local

    async def identify(self, method: str, metadata: Metadata, context: Context) -> Caller:
        """Who calls. Raises Unauthenticated, Starting or InvalidRequest."""
        if is_open(method):
            return ANONYMOUS
        if self._identity is None:
            return caller_from_metadata(metadata, is_local=self._is_local)
        if _credentials(context) > 1:
            raise Unauthenticated("authorization must be given once")
        return await self._identity.caller(metadata, partial(_identities, context))

    def authorise(self, method: str, caller: Caller) -> None:
        """Raises Forbidden."""
        if self._identity is not None and not is_open(method):
            self._authorisation.check(method, caller)


def _credentials(context: Context) -> int:
    """As many as the caller sent, which the mapping of the metadata does not tell."""
    return sum(key == AUTHORIZATION_KEY for key, _ in context.invocation_metadata() or ())


def _identities(context: Context) -> tuple[str, ...]:
    """Of the client's certificate, which TLS has verified."""
    properties: dict[str, list[bytes]] = context.auth_context()  # type: ignore[assignment]
    return tuple(value.decode(errors="replace") for name in _PROPERTIES for value in properties.get(name, ()))
