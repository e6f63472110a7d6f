"""The server's certificate and key, and the CAs of its clients, as PEM that is known to fit together."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key

from inferwire_server.security.watched_files import WatchedFiles

_BEGIN = b"-----BEGIN CERTIFICATE-----"
_BROKEN = (ValueError, TypeError, UnsupportedAlgorithm, x509.InvalidVersion)


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificates:
    """PEM, checked. Expiries are seconds since the epoch."""

    chain: bytes
    key: bytes
    client_ca: bytes | None
    serial: int
    expires_at: float
    client_ca_expires_at: float | None


def watch_certificates(
    certificate: Path, key: Path, client_ca: Path | None, failed: Callable[[str], None]
) -> WatchedFiles[Certificates]:
    """Raises OSError, or ValueError that says which file is wrong."""
    paths = [certificate, key, *([client_ca] if client_ca else [])]
    return WatchedFiles("certificate", paths, lambda contents: load_certificates(contents, time.time()), failed)


def load_certificates(contents: Sequence[bytes], now: float) -> Certificates:
    """From the files' contents: chain, key and perhaps the clients' CAs. Raises ValueError."""
    chain, key, *rest = contents
    client_ca = rest[0] if rest else None
    leaf = _parsed(chain, "the certificate")[0]
    if _expiry(leaf) <= now:
        raise ValueError(f"the certificate expired on {leaf.not_valid_after_utc:%Y-%m-%d}")
    try:
        public = load_pem_private_key(key, None).public_key()
    except _BROKEN:
        raise ValueError("the key is no whole PEM of a private key without a password") from None
    try:
        certified = leaf.public_key()
    except _BROKEN:
        raise ValueError("the certificate is of no known kind of key") from None
    if _encoded(public) != _encoded(certified):
        raise ValueError("the key is not that of the certificate")
    return Certificates(
        chain=chain,
        key=key,
        client_ca=client_ca,
        serial=leaf.serial_number,
        expires_at=_expiry(leaf),
        client_ca_expires_at=None if client_ca is None else min(map(_expiry, _parsed(client_ca, "the clients' CA"))),
    )


def _parsed(pem: bytes, name: str) -> list[x509.Certificate]:
    try:
        found = x509.load_pem_x509_certificates(pem)
    except _BROKEN:
        found = []
    # A file that is being written ends in mid-certificate, perhaps after whole ones.
    if not found or len(found) != pem.count(_BEGIN):
        raise ValueError(f"{name} is no whole PEM")
    return found


def _expiry(certificate: x509.Certificate) -> float:
    return (certificate.not_valid_after_utc - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds()


def _encoded(key: object) -> bytes:
    encoded: bytes = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)  # type: ignore[attr-defined]
    return encoded
