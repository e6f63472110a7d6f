"""Callers by the digest of the credential that was proved theirs, for a bounded time."""

from __future__ import annotations

from collections import OrderedDict

from inferwire_server.domain.caller import Caller

_LONGEST_S = 60.0
_MOST = 4096


class Verdicts:
    """The least recently used give way. Times are seconds since the epoch."""

    def __init__(self) -> None:
        self._known: OrderedDict[bytes, tuple[Caller, float]] = OrderedDict()

    def get(self, digest: bytes, now: float) -> Caller | None:
        """The caller, while the verdict stands."""
        found = self._known.get(digest)
        if found is None:
            return None
        caller, until = found
        if now >= until:
            del self._known[digest]
            return None
        self._known.move_to_end(digest)
        return caller

    def put(self, digest: bytes, caller: Caller, *, now: float, expires_at: int) -> None:
        """Keep a verdict, never beyond the credential's own end."""
        self._known[digest] = (caller, min(now + _LONGEST_S, expires_at))
        self._known.move_to_end(digest)
        if len(self._known) > _MOST:
            self._known.popitem(last=False)

    def clear(self) -> None:
        """What was proved by keys that may be gone counts no more."""
        self._known.clear()
