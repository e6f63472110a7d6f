"""API keys: 256 random bits, of which the server keeps an HMAC-SHA256 under a secret of its own."""

from __future__ import annotations

import hmac
import json
import re
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from inferwire_server.domain.caller import Caller
from inferwire_server.domain.errors import Unauthenticated
from inferwire_server.security.identity import API_KEY_START, is_subject, is_tenant

FORMAT = 1
_KEY = re.compile(rf"({API_KEY_START}[0-9a-f]{{12}})_[A-Za-z0-9_-]{{43}}")
_PREFIX = re.compile(rf"{API_KEY_START}[0-9a-f]{{12}}")
_MIN_SECRET_BYTES = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiKey:
    """What is kept of a key. Times are UTC."""

    prefix: str
    """The part that may be shown; names the key."""
    digest: bytes
    caller: Caller
    created_at: datetime
    expires_at: datetime | None = None
    revoked_at: datetime | None = None

    def state(self, now: datetime) -> str:
        """`valid`, `expired` or `revoked`."""
        if self.revoked_at is not None:
            return "revoked"
        return "expired" if self.expires_at is not None and self.expires_at <= now else "valid"


def new_key(
    secret: bytes, *, tenant: str, subject: str, roles: Sequence[str], now: datetime, expires_at: datetime | None
) -> tuple[str, ApiKey]:
    """A key to hand out, once, and what to keep of it. Raises ValueError for a name that cannot be one."""
    prefix = f"{API_KEY_START}{secrets.token_hex(6)}"
    key = f"{prefix}_{secrets.token_urlsafe(32)}"
    kept = ApiKey(
        prefix=prefix,
        digest=_digest(secret, key),
        caller=_caller(tenant, subject or prefix, roles),
        created_at=now,
        expires_at=expires_at,
    )
    return key, kept


class ApiKeys:
    """Known keys, as `read` has them now."""

    def __init__(self, read: Callable[[], KeyRing], clock: Callable[[], float] = time.time) -> None:
        self._read = read
        self._clock = clock

    def caller(self, key: str) -> Caller:
        """Whose it is. Raises Unauthenticated."""
        ring = self._read()
        found = _KEY.fullmatch(key)
        kept = ring.keys.get(found[1]) if found else None
        if kept is None or not hmac.compare_digest(kept.digest, _digest(ring.secret, key)):
            raise Unauthenticated("the API key is not known here")
        if kept.revoked_at is not None:
            raise Unauthenticated("the API key has been revoked")
        if kept.expires_at is not None and kept.expires_at.timestamp() <= self._clock():
            raise Unauthenticated("the API key has expired")
        return kept.caller


@dataclass(frozen=True, slots=True)
class KeyRing:
    """The secret and the keys hashed under it, by prefix."""

    secret: bytes
    keys: Mapping[str, ApiKey]


def load_key_ring(contents: Sequence[bytes]) -> KeyRing:
    """From the contents of the file of keys and that of the secret. Raises ValueError."""
    listed, secret = contents
    return KeyRing(parse_secret(secret), {key.prefix: key for key in parse_keys(listed)})


def parse_secret(content: bytes) -> bytes:
    """The secret in a file, without the line's end. Raises ValueError for one that is too short to be any."""
    secret = content.strip()
    if len(secret) < _MIN_SECRET_BYTES:
        raise ValueError(f"the API keys' secret has fewer than {_MIN_SECRET_BYTES} bytes")
    return secret


def parse_keys(content: bytes) -> list[ApiKey]:
    """The keys of a file. Raises ValueError."""
    try:
        document = json.loads(content)
        if document["format"] != FORMAT:
            raise ValueError("of another format")
        return [_from_json(entry) for entry in document["keys"]]
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError, OverflowError) as error:
        raise ValueError(f"no file of API keys: {type(error).__name__}") from None


def keys_document(keys: Sequence[ApiKey]) -> bytes:
    """The file's content."""
    return json.dumps({"format": FORMAT, "keys": [_to_json(key) for key in keys]}, indent=1).encode() + b"\n"


def _digest(secret: bytes, key: str) -> bytes:
    return hmac.digest(secret, key.encode(), "sha256")


def _caller(tenant: Any, subject: Any, roles: Sequence[Any]) -> Caller:
    if not isinstance(tenant, str) or not is_tenant(tenant):
        raise ValueError("a tenant is 1 to 64 letters, digits and ._- and begins with a letter or digit")
    if not is_subject(subject) or not all(is_subject(role) for role in roles):
        raise ValueError("subject and roles must be printable and not empty")
    return Caller(tenant=tenant, subject=subject, roles=frozenset(roles))


def _to_json(key: ApiKey) -> dict[str, Any]:
    return {
        "prefix": key.prefix,
        "hmac_sha256": key.digest.hex(),
        "tenant": key.caller.tenant,
        "subject": key.caller.subject,
        "roles": sorted(key.caller.roles),
        "created_at": key.created_at.isoformat(),
        "expires_at": key.expires_at.isoformat() if key.expires_at else None,
        "revoked_at": key.revoked_at.isoformat() if key.revoked_at else None,
    }


def _from_json(entry: dict[str, Any]) -> ApiKey:
    if not _PREFIX.fullmatch(entry["prefix"]) or not isinstance(entry["roles"], list):
        raise ValueError("a malformed entry")
    return ApiKey(
        prefix=entry["prefix"],
        digest=bytes.fromhex(entry["hmac_sha256"]),
        caller=_caller(entry["tenant"], entry["subject"], entry["roles"]),
        created_at=_time(entry["created_at"]),
        expires_at=_time(entry["expires_at"]) if entry["expires_at"] else None,
        revoked_at=_time(entry["revoked_at"]) if entry["revoked_at"] else None,
    )


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)
