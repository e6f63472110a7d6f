"""Names of prefix-cache partitions, derived on the server: a caller can neither choose nor guess another's."""

from __future__ import annotations

import hashlib

_PURPOSE = b"inferwire prefix cache 1"


def cache_salt(namespace: str, *, only_for: str = "") -> str:
    """The engine's salt for a cache namespace; with `only_for`, one that no other request shares.

    SHA-256 over length-framed parts, so that no choice of one part can imitate another.
    """
    digest = hashlib.sha256()
    for part in (_PURPOSE, namespace.encode("utf-8", "surrogatepass"), only_for.encode("utf-8", "surrogatepass")):
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return digest.hexdigest()
