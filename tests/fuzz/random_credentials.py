"""Random credentials of every kind: right ones, damaged ones, right signatures under strange claims, no credentials.

`corpus/credentials.json` holds what has mattered before; a part of all draws comes from it.
"""

from __future__ import annotations

import base64
import json
import random
import string
from pathlib import Path
from typing import Any

from tests.fuzz.random_messages import TEXTS
from tests.secured import TRUST, Deployment

CORPUS = json.loads((Path(__file__).parent / "corpus" / "credentials.json").read_text(encoding="utf-8"))
_VALUES: tuple[Any, ...] = (None, True, 0, -1, 1.5, 10**30, [], {}, "", "acme", ["user"], [[]], {"a": {"b": []}})
_CLAIMS = ("iss", "aud", "sub", "exp", "nbf", "iat", "tenant", "roles", "jti")
_PRINTABLE = string.printable[:95]
_LONGEST = 6_000
"""Above it, gRPC refuses the metadata by itself."""


class RandomCredentials:
    """Draws for one deployment."""

    def __init__(self, deployment: Deployment) -> None:
        self._issuer = deployment.issuer
        self._keys = [deployment.key("user"), deployment.key("operator"), deployment.key("user", "operator")]

    def draw(self, source: random.Random) -> tuple[tuple[tuple[str, str], ...], tuple[str, ...]]:
        """Metadata, and what in it must not come back."""
        entries: list[tuple[str, str]] = []
        secrets: list[str] = []
        for _ in range(source.choice((0, 1, 1, 1, 1, 1, 2))):
            header = self._header(source)
            secret = header.rpartition(" ")[2]
            secrets += [secret] if len(secret) >= 16 else []
            entries.append(("authorization", header))
        if source.random() < 0.4:
            entries.append(("x-forwarded-client-cert", self._forwarded(source)))
        return tuple(entries), tuple(secrets)

    def _header(self, source: random.Random) -> str:
        if source.random() < 0.1:
            return str(source.choice(CORPUS["headers"]))
        scheme = "Bearer " if source.random() < 0.9 else source.choice(("bearer ", "BEARER  ", "Basic ", "", "Bearer:"))
        credential = self._credential(source)
        return (scheme + (_damaged(source, credential) if source.random() < 0.3 else credential)).strip()[:_LONGEST]

    def _credential(self, source: random.Random) -> str:
        kind = source.randrange(10)
        if kind < 3:
            return source.choice(self._keys)
        if kind < 8:
            return self._token(source)
        if kind == 8:
            return ".".join(_encoded(self._json(source)) for _ in range(source.choice((1, 2, 3, 3, 3, 5))))
        return "".join(source.choices(_PRINTABLE, k=source.choice((1, 20, 500, 5_000)))).strip()

    def _token(self, source: random.Random) -> str:
        if source.random() < 0.3:
            return self._issuer.token(roles=source.choice((["user"], "operator", [])))
        claims: dict[str, Any] = dict(source.choice(CORPUS["claims"])) if source.random() < 0.3 else {}
        for name in source.sample(_CLAIMS, source.choice((0, 1, 1, 2))):
            claims[name] = source.choice(TEXTS) if source.random() < 0.5 else source.choice(_VALUES)
        headers = {"typ": source.choice(TEXTS)} if source.random() < 0.1 else {}
        return self._issuer.token(headers=headers, **claims)

    def _json(self, source: random.Random) -> bytes:
        if source.random() < 0.3:
            return source.choice(
                (b"[" * 3_000, b"{", b"\xff\xfe", b"9" * 5_000, b'{"alg":"ES256","alg":"none"}', b"NaN")
            )
        part = {
            name: source.choice((*_VALUES, *TEXTS)) for name in source.sample(("alg", "kid", "crit", "b64", "exp"), 3)
        }
        return json.dumps(part).encode()

    def _forwarded(self, source: random.Random) -> str:
        if source.random() < 0.3:
            return str(source.choice(CORPUS["forwarded"]))
        names = ("URI", "Subject", "By", "Hash", "uri", "")
        values = (f"{TRUST}/user", f"{TRUST}/operator", f"{TRUST}/stranger", "CN=a", '"CN=a,O=b"', '"', "\\", "")
        pairs = (f"{source.choice(names)}={source.choice(values)}" for _ in range(source.choice((1, 2, 5, 60))))
        return "".join(pair + source.choice(",;;") for pair in pairs)[: source.choice((40, _LONGEST))]


def _damaged(source: random.Random, text: str) -> str:
    at = source.randrange(len(text) + 1)
    kind = source.randrange(3)
    if kind == 0:
        return text[:at]
    inserted = "".join(source.choices(_PRINTABLE, k=source.choice((1, 3))))
    return text[:at] + inserted + text[at + (kind == 1) :]


def _encoded(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()
