"""The file of API keys as `inferwire keys` changes it: whole at every moment, one change at a time."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from filelock import FileLock

from inferwire_server.security.api_keys import ApiKey, keys_document, new_key, parse_keys, parse_secret


class UnknownKey(Exception):
    """No key has this prefix."""


class KeyFile:
    """Keys in one file, their secret in another. Every method raises OSError, and ValueError for a broken file."""

    def __init__(self, keys: Path, secret: Path) -> None:
        self._path = keys
        self._secret = secret

    def keys(self) -> list[ApiKey]:
        """Oldest first; none while there is no file."""
        return parse_keys(self._path.read_bytes()) if self._path.exists() else []

    def create(
        self, *, tenant: str, subject: str, roles: Sequence[str], now: datetime, expires_at: datetime | None
    ) -> str:
        """A new key, which is kept nowhere else. Makes both files when they are not there."""
        made: list[str] = []

        def add(keys: list[ApiKey]) -> list[ApiKey]:
            secret = self._own_secret()
            key, kept = new_key(secret, tenant=tenant, subject=subject, roles=roles, now=now, expires_at=expires_at)
            made.append(key)
            return [*keys, kept]

        self._change(add)
        return made[0]

    def revoke(self, prefix: str, *, now: datetime) -> ApiKey:
        """End a key. Raises UnknownKey."""

        def end(keys: list[ApiKey]) -> list[ApiKey]:
            if not any(key.prefix == prefix for key in keys):
                raise UnknownKey(prefix)
            return [replace(k, revoked_at=k.revoked_at or now) if k.prefix == prefix else k for k in keys]

        return next(key for key in self._change(end) if key.prefix == prefix)

    def _change(self, change: Callable[[list[ApiKey]], list[ApiKey]]) -> list[ApiKey]:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{self._path}.lock"):
            keys = change(self.keys())
            _write(self._path, keys_document(keys))
        return keys

    def _own_secret(self) -> bytes:
        if not self._secret.exists():
            self._secret.parent.mkdir(parents=True, exist_ok=True)
            _write(self._secret, secrets.token_hex(32).encode() + b"\n")
        return parse_secret(self._secret.read_bytes())


def _write(path: Path, content: bytes) -> None:
    """Replace a file in one step; only its owner may read it."""
    new = path.with_name(f".{path.name}.new")
    new.unlink(missing_ok=True)
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(new, path)
