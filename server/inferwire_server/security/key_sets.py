"""The keys that an issuer signs tokens with (JWKS), as they are now."""

from __future__ import annotations

import asyncio
import json
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import jwt
import structlog
from cryptography.exceptions import UnsupportedAlgorithm

from inferwire_server.security.watched_files import reason_not_to_use

_CURVES = {"P-256": "ES256", "P-384": "ES384", "P-521": "ES512", "Ed25519": "EdDSA"}
_log = structlog.get_logger("inferwire.security")
_FETCH_TIMEOUT_S = 5.0
_MAX_BYTES = 1 << 20
_FILE_INTERVAL_S = 0.5
_SHORTEST_INTERVAL_S = {True: 0.2, False: 5.0}
"""Between looks for a key that a token names, for a file and for an address: anybody can make up names."""


@dataclass(frozen=True, slots=True)
class VerificationKey:
    """A public key and the signatures it is for."""

    key: Any
    algorithms: Sequence[str]


class KeySet:
    """Keys by their id, from a file or an address. What cannot be read or used leaves the old ones."""

    def __init__(
        self,
        source: str,
        algorithms: Sequence[str],
        *,
        refresh_s: float,
        failed: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Nothing is read yet. `failed` is called for each vain attempt whose cause is new."""
        is_file = "://" not in source
        self.interval_s = _FILE_INTERVAL_S if is_file else refresh_s
        self.is_known = False
        """Whether there were ever keys."""
        self.generation = 0
        """Grows with each change of the keys."""
        self._read = Path(source).read_bytes if is_file else lambda: _fetch(source)
        self._spacing_s = _SHORTEST_INTERVAL_S[is_file]
        self._algorithms = tuple(algorithms)
        self._failed = failed
        self._clock = clock
        self._keys: Mapping[str, VerificationKey] = {}
        self._seen: object = None
        self._looked_at = float("-inf")
        self._looking: asyncio.Task[bool] | None = None

    async def find(self, key_id: str) -> VerificationKey | None:
        """A key; one that is not known is looked for at the source, by all who want it together."""
        found = self._keys.get(key_id)
        if found is None and (self._looking is not None or self._clock() - self._looked_at >= self._spacing_s):
            if self._looking is None:
                self._looked_at = self._clock()
                self._looking = asyncio.create_task(asyncio.to_thread(self.refresh), name="look for a key")
                self._looking.add_done_callback(self._has_looked)
            await asyncio.shield(self._looking)
            found = self._keys.get(key_id)
        return found

    def refresh(self) -> bool:
        """Whether there is something new. Blocks, so not for the serving loop."""
        try:
            content = self._read()
            if content == self._seen:
                return False
            keys = parse_key_set(content, self._algorithms)
        except Exception as error:  # noqa: BLE001 a call may wait for this, and the next set is read whatever this one was
            reason = reason_not_to_use(error)
            if self._seen != reason:
                self._seen = reason
                _log.warning("not reloaded", kind="jwks", reason=reason)
                self._failed("jwks")
            return False
        self._seen, self._keys, self.is_known = content, keys, True
        self.generation += 1
        _log.info("reloaded", kind="jwks", keys=sorted(keys))
        return True

    def _has_looked(self, task: asyncio.Task[bool]) -> None:
        self._looking = None


def parse_key_set(content: bytes, algorithms: Sequence[str]) -> dict[str, VerificationKey]:
    """Usable keys by id. Raises ValueError for what is no key set, or one without a usable key."""
    try:
        entries = json.loads(content)["keys"]
        keys = [_usable(entry, algorithms) for entry in entries]
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
        raise ValueError("no JSON Web Key Set") from None
    found = {key_id: key for key_id, key in keys if key is not None}
    if not found:
        raise ValueError("no key in the set has an id and one of the algorithms")
    return found


def _usable(entry: Mapping[str, Any], algorithms: Sequence[str]) -> tuple[str, VerificationKey | None]:
    key_id = entry.get("kid")
    if not isinstance(key_id, str) or entry.get("use", "sig") != "sig":
        return "", None
    named = entry.get("alg")
    fitting = tuple(algorithm for algorithm in algorithms if named in (None, algorithm) and _fits(entry, algorithm))
    try:
        return key_id, VerificationKey(jwt.PyJWK(dict(entry)).key, fitting) if fitting else None
    except (jwt.PyJWTError, UnsupportedAlgorithm):
        return "", None


def _fits(entry: Mapping[str, Any], algorithm: str) -> bool:
    if entry.get("kty") == "RSA":
        return algorithm.startswith(("RS", "PS"))
    return entry.get("kty") in ("EC", "OKP") and _CURVES.get(entry.get("crv", "")) == algorithm


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Keys come from the address that is configured, not from wherever it points."""

    def redirect_request(self, *arguments: Any) -> None:
        return None


_fetcher = urllib.request.build_opener(_NoRedirects)


def _fetch(address: str) -> bytes:
    """Raises OSError and ValueError, which repeat nothing of an answer."""
    try:
        with _fetcher.open(address, timeout=_FETCH_TIMEOUT_S) as answer:
            content: bytes = answer.read(_MAX_BYTES + 1)
    except HTTPError as error:
        raise ValueError(f"the answer's status is {error.code}") from None
    except (HTTPException, ValueError) as error:
        raise ValueError(f"no whole answer in HTTP: {type(error).__name__}") from None
    if len(content) > _MAX_BYTES:
        raise ValueError("the key set is larger than 1 MiB")
    return content
