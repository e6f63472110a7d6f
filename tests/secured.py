"""A server that asks who calls, over TLS, with everything that proves it: keys, an issuer of tokens, a CA."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import jwt
from cryptography.hazmat.primitives.asymmetric import ec
from inferwire_server.security.development_ca import DevelopmentCa, Issued
from inferwire_server.security.key_file import KeyFile

from tests.serving import Serving, serving

HOSTS = ("localhost", "127.0.0.1", "::1")
TRUST = "spiffe://test.example"
Metadata = tuple[tuple[str, str], ...]


class Issuer:
    """Signs tokens; what it publishes is in `jwks`."""

    name = "https://issuer.example"
    audience = "inferwire"

    def __init__(self, jwks: Path) -> None:
        self.jwks = jwks
        self._keys: dict[str, ec.EllipticCurvePrivateKey] = {}
        self.rotate("first")

    def rotate(self, key_id: str, *, keep: Sequence[str] = ()) -> None:
        """Sign with a new key from now on; published are it and those that are kept."""
        self._keys = {name: self._keys[name] for name in keep} | {key_id: ec.generate_private_key(ec.SECP256R1())}
        self.signs_with = key_id
        self.jwks.write_text(json.dumps({"keys": [_jwk(name, key) for name, key in self._keys.items()]}))

    def token(self, *, expires_in_s: float = 600, headers: dict[str, Any] | None = None, **claims: Any) -> str:
        """A token of tenant `acme` and role `user`; a claim given as None is left out."""
        now = time.time()
        given = {
            "iss": self.name,
            "aud": self.audience,
            "sub": "backend",
            "exp": now + expires_in_s,
            "iat": now - 3600,
            "tenant": "acme",
            "roles": ["user"],
        } | claims
        payload = {name: value for name, value in given.items() if value is not None}
        # Not by jwt.encode, which refuses to sign claims that no token should have.
        return jwt.PyJWS().encode(
            json.dumps(payload).encode(),
            self._keys[self.signs_with],
            algorithm="ES256",
            headers={"typ": "JWT", "kid": self.signs_with, **(headers or {})},
        )

    def settings(self, **changes: Any) -> dict[str, Any]:
        return {"issuer": self.name, "audience": self.audience, "jwks": str(self.jwks), **changes}


class Deployment:
    """Files of one secured server, in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ca = DevelopmentCa("test CA")
        self.issuer = Issuer(folder / "jwks.json")
        self.keys = KeyFile(folder / "keys.json", folder / "keys.secret")
        self.keys.create(tenant="nobody", subject="", roles=(), now=_now(), expires_at=None)
        (folder / "ca.pem").write_bytes(self.ca.certificate)
        self.server_certificate = self.renew()

    def renew(self) -> Issued:
        """Another certificate of the server in place of the one before."""
        self.server_certificate = self.ca.issue("server", hosts=HOSTS, spiffe_id=f"{TRUST}/server")
        self.server_certificate.write(self.folder, "server")
        return self.server_certificate

    def key(self, *roles: str, tenant: str = "acme", expires_in: timedelta | None = None) -> str:
        expires_at = None if expires_in is None else _now() + expires_in
        return self.keys.create(tenant=tenant, subject="", roles=roles, now=_now(), expires_at=expires_at)

    def client(self, path: str, *, lasts: timedelta = timedelta(days=1), ca: DevelopmentCa | None = None) -> Issued:
        """A client's certificate with the SPIFFE id of this path."""
        return (ca or self.ca).issue(path, spiffe_id=f"{TRUST}/{path}", lasts=lasts)

    def settings(self, *, client_ca: bool = False) -> dict[str, Any]:
        """TLS, API keys and tokens; with `client_ca` certificates too, by paths `user`, `operator` and `roleless`."""
        settings: dict[str, Any] = {
            "tls_certificate": self.folder / "server.pem",
            "tls_key": self.folder / "server-key.pem",
            "api_keys": self.folder / "keys.json",
            "api_keys_secret": self.folder / "keys.secret",
            "jwt": self.issuer.settings(),
        }
        if client_ca:
            roles: dict[str, tuple[str, ...]] = {"user": ("user",), "operator": ("operator",), "roleless": ()}
            settings["tls_client_ca"] = self.folder / "ca.pem"
            settings["certificates"] = [
                {"identity": f"{TRUST}/{path}", "tenant": "acme", "roles": given} for path, given in roles.items()
            ]
        return settings

    def channel_credentials(self, client: Issued | None = None) -> grpc.ChannelCredentials:
        """What a client that trusts the CA connects with."""
        if client is None:
            return grpc.ssl_channel_credentials(self.ca.certificate)
        return grpc.ssl_channel_credentials(self.ca.certificate, client.key, client.certificate)

    def channel(self, server: Serving, client: Issued | None = None) -> grpc.aio.Channel:
        """A connection of its own."""
        options = [("grpc.use_local_subchannel_pool", 1)]
        return grpc.aio.secure_channel(server.address, self.channel_credentials(client), options=options)


def bearer(credential: str) -> Metadata:
    return (("authorization", f"Bearer {credential}"),)


@asynccontextmanager
async def secured(deployment: Deployment, *, client_ca: bool = False, **more: Any) -> AsyncIterator[Serving]:
    """A server of that deployment. Its own channel speaks no TLS: open one by `deployment.channel`."""
    async with serving(**(deployment.settings(client_ca=client_ca) | more)) as server:
        yield server


def _jwk(key_id: str, key: ec.EllipticCurvePrivateKey) -> dict[str, Any]:
    public = jwt.algorithms.ECAlgorithm.to_jwk(key.public_key(), as_dict=True)
    return {**public, "kid": key_id, "use": "sig", "alg": "ES256"}


def _now() -> datetime:
    return datetime.now(UTC)
