"""JSON Web Tokens: who a token of the trusted issuer speaks for."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from typing import Any

import jwt

from inferwire_server.domain.caller import Caller
from inferwire_server.domain.errors import Starting, Unauthenticated
from inferwire_server.security.identity import is_subject, is_tenant
from inferwire_server.security.key_sets import KeySet
from inferwire_server.security.verdicts import Verdicts
from inferwire_server.settings import JwtSettings

_REQUIRED = ("iss", "aud", "exp", "sub")
_KEYS_MISSING_HINT_S = 5.0
_BROKEN = (jwt.PyJWTError, ValueError, TypeError, OverflowError, RecursionError)
"""What PyJWT raises for tokens that are none."""


class Tokens:
    """Checks signature, issuer, audience and times; a verdict is kept for a while."""

    def __init__(self, settings: JwtSettings, keys: KeySet, clock: Callable[[], float] = time.time) -> None:
        self._settings = settings
        self._keys = keys
        self._clock = clock
        self._verdicts = Verdicts()
        self._verdicts_of = keys.generation

    async def caller(self, token: str) -> Caller:
        """Whose it is. Raises Unauthenticated, or Starting while the issuer's keys were never seen."""
        if self._verdicts_of != self._keys.generation:
            self._verdicts_of = self._keys.generation
            self._verdicts.clear()
        digest = hashlib.sha256(token.encode()).digest()
        known = self._verdicts.get(digest, self._clock())
        if known is not None:
            return known
        claims = await self._claims(token)
        caller = self._caller(claims)
        # Within the leeway after its end, each call is checked again.
        self._verdicts.put(digest, caller, now=self._clock(), expires_at=int(claims["exp"]))
        return caller

    async def _claims(self, token: str) -> dict[str, Any]:
        settings = self._settings
        try:
            key_id = jwt.get_unverified_header(token).get("kid")
        except _BROKEN:
            raise Unauthenticated("the credential is no token") from None
        key = await self._keys.find(key_id) if isinstance(key_id, str) else None
        if key is None and not self._keys.is_known:
            raise Starting("the token issuer’s keys are not known here yet", retry_after_s=_KEYS_MISSING_HINT_S)
        if key is None:
            raise Unauthenticated("the token names no key of the issuer")
        try:
            return jwt.decode(
                token,
                key.key,
                algorithms=list(key.algorithms),
                audience=settings.audience,
                issuer=settings.issuer,
                leeway=settings.leeway,
                options={"require": list(_REQUIRED), "enforce_minimum_key_length": True},
            )
        except jwt.ExpiredSignatureError:
            raise Unauthenticated("the token has expired") from None
        except (jwt.InvalidAudienceError, jwt.InvalidIssuerError, jwt.MissingRequiredClaimError) as error:
            raise Unauthenticated(f"the token is not for this service: {_WRONG[type(error)]}") from None
        except _BROKEN:
            raise Unauthenticated("the token is not valid") from None

    def _caller(self, claims: dict[str, Any]) -> Caller:
        tenant, subject = claims.get(self._settings.tenant_claim), claims["sub"]
        roles = claims.get(self._settings.roles_claim, [])
        if isinstance(roles, str):
            roles = roles.split()
        if not isinstance(tenant, str) or not is_tenant(tenant) or not is_subject(subject):
            raise Unauthenticated("the token names no tenant, or a subject that cannot be one")
        if not isinstance(roles, list) or not all(isinstance(role, str) for role in roles):
            raise Unauthenticated("the token’s roles are no list of names")
        return Caller(tenant=tenant, subject=subject, roles=frozenset(roles))


_WRONG = {
    jwt.InvalidAudienceError: "its audience is another",
    jwt.InvalidIssuerError: "its issuer is another",
    jwt.MissingRequiredClaimError: "iss, aud, exp and sub are required",
}
