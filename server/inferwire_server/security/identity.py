"""Who a caller is: by the credential of a call, else by the certificate of its connection.

Where nobody has to say who they are, the tenant is believed from metadata, on the server's own machine only.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Protocol

from inferwire_server.domain.caller import ANONYMOUS, Caller
from inferwire_server.domain.errors import InvalidRequest, Unauthenticated
from inferwire_server.settings import TENANT_PATTERN

TENANT_KEY = "x-inferwire-tenant"
AUTHORIZATION_KEY = "authorization"
API_KEY_START = "iw_"
MAX_CREDENTIAL_CHARACTERS = 8192
_SCHEME = "bearer "
_TENANT = re.compile(TENANT_PATTERN)
_MAX_SUBJECT = 512

Metadata = Mapping[str, str | bytes]


class ApiKeyCheck(Protocol):
    """Whose key it is. Raises Unauthenticated."""

    def caller(self, key: str) -> Caller: ...


class TokenCheck(Protocol):
    """Whose token it is; may wait for the issuer's newest keys. Raises Unauthenticated or Starting."""

    async def caller(self, token: str) -> Caller: ...


class CertificateCheck(Protocol):
    """Whose certificate it is; None for one of nobody known. `identities` are those of the connection."""

    def caller(self, identities: tuple[str, ...], metadata: Metadata) -> Caller | None: ...


class Identity:
    """The ways to authenticate that are configured. A credential in the metadata counts alone: one that is no good
    is refused, whatever the connection's certificate says."""

    def __init__(
        self,
        *,
        api_keys: ApiKeyCheck | None = None,
        tokens: TokenCheck | None = None,
        certificates: CertificateCheck | None = None,
    ) -> None:
        self._api_keys = api_keys
        self._tokens = tokens
        self._certificates = certificates

    async def caller(self, metadata: Metadata, identities: Callable[[], tuple[str, ...]]) -> Caller:
        """`identities` gives those of the connection's certificate.

        Raises Unauthenticated, or Starting while the keys that tokens are signed by are not known yet.
        """
        header = metadata.get(AUTHORIZATION_KEY)
        if header is not None:
            credential = _credential(header)
            if credential.startswith(API_KEY_START):
                if self._api_keys is not None:
                    return self._api_keys.caller(credential)
            elif self._tokens is not None:
                return await self._tokens.caller(credential)
            raise Unauthenticated("this kind of credential is not accepted here")
        if self._certificates is not None:
            caller = self._certificates.caller(identities(), metadata)
            if caller is not None:
                return caller
        raise Unauthenticated("a credential is required")


def caller_from_metadata(metadata: Metadata, *, is_local: bool) -> Caller:
    """The caller that metadata names, where anybody may call. Raises InvalidRequest for a name that cannot be one."""
    tenant = metadata.get(TENANT_KEY)
    if tenant is None or not is_local:
        return ANONYMOUS
    if not isinstance(tenant, str) or not _TENANT.fullmatch(tenant):
        raise InvalidRequest(TENANT_KEY, "must be 1 to 64 letters, digits and ._- and begin with a letter or digit")
    return Caller(tenant=tenant)


def is_tenant(name: str) -> bool:
    """Whether a tenant can be called that."""
    return _TENANT.fullmatch(name) is not None


def is_subject(name: object) -> bool:
    """Whether a subject can be called that: it goes into logs."""
    return isinstance(name, str) and 0 < len(name) <= _MAX_SUBJECT and name.isprintable()


def _credential(header: str | bytes) -> str:
    if isinstance(header, str) and header[: len(_SCHEME)].lower() == _SCHEME:
        credential = header[len(_SCHEME) :].strip()
        if 0 < len(credential) <= MAX_CREDENTIAL_CHARACTERS and credential.isascii():
            return credential
    raise Unauthenticated("authorization must be `Bearer` and a credential")
