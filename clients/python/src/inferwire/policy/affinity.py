"""The same server for calls that begin alike, whose cache has that beginning, unless it is busier than the rest."""

from __future__ import annotations

import math
from collections.abc import Sequence
from hashlib import blake2b

from inferwire.policy.endpoint import EndpointState


def by_affinity(key: bytes, endpoints: Sequence[EndpointState], bounded_load: float) -> EndpointState:
    """The endpoint that a key of at most 64 bytes belongs to, or where it spills to.

    Rendezvous hashing (Thaler and Ravishankar): each key ranks the endpoints, and only keys of an endpoint that leaves
    move. With bounded loads (Mirrokni, Thorup and Zadimoghaddam): the first in rank that would hold no more than
    `bounded_load` times the mean, rounded up.
    """
    ranked = sorted(endpoints, key=lambda one: _weight(key, one.key), reverse=True)
    outstanding = sum(one.outstanding for one in endpoints)
    most = math.ceil(bounded_load * (outstanding + 1.0) / len(endpoints))
    return next((one for one in ranked if one.outstanding + 1.0 <= most), ranked[0])


def _weight(key: bytes, endpoint: str) -> bytes:
    return blake2b(endpoint.encode(), digest_size=8, key=key).digest()
