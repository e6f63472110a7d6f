"""Requests that share a long prefix and arrive together: compute it once, then let the others take it from the cache.

For engines with a prefix cache that does not share work in progress. A follower waits while the prompt of its leader is
in prefill; it waits only where that is worth it, and other requests overtake it meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Generic, TypeVar

T = TypeVar("T")

LEAST_SHARED_TOKENS = 128
"""Shorter common prefixes are cheaper to compute again than to wait for."""


@dataclass(slots=True, eq=False)
class Leader(Generic[T]):
    """A prompt in prefill and those who wait for it."""

    namespace: str
    prompt_token_ids: Sequence[int]
    followers: list[T] = field(default_factory=list)


class Staggering(Generic[T]):
    """Who waits behind whose prefill. Followers are whatever the caller names them by."""

    def __init__(self) -> None:
        self._leaders: dict[tuple[str, tuple[int, ...]], list[Leader[T]]] = {}

    def leader_of(self, prompt_token_ids: Sequence[int], namespace: str) -> Leader[T] | None:
        """The prefill to wait for: at least LEAST_SHARED_TOKENS and half of it are the beginning of this prompt too.

        So the wait is at most twice the computing that it saves.
        """
        if len(prompt_token_ids) < LEAST_SHARED_TOKENS:
            return None
        candidates = self._leaders.get((namespace, tuple(prompt_token_ids[:LEAST_SHARED_TOKENS])), ())
        for leader in candidates:
            pairs = zip(leader.prompt_token_ids, prompt_token_ids, strict=False)
            shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
            if 2 * shared >= len(leader.prompt_token_ids):
                return leader
        return None

    def began(self, prompt_token_ids: Sequence[int], namespace: str) -> Leader[T]:
        """The engine has taken a prompt."""
        leader: Leader[T] = Leader(namespace, prompt_token_ids)
        if len(prompt_token_ids) >= LEAST_SHARED_TOKENS:
            self._leaders.setdefault(_key(leader), []).append(leader)
        return leader

    def ended(self, leader: Leader[T]) -> list[T]:
        """Its first token came, or it never will: the followers to offer again. A second call changes nothing."""
        if len(leader.prompt_token_ids) < LEAST_SHARED_TOKENS:
            return []
        leaders = self._leaders.get(_key(leader), [])
        if leader in leaders:
            leaders.remove(leader)
            if not leaders:
                del self._leaders[_key(leader)]
        followers, leader.followers = leader.followers, []
        return followers


def _key(leader: Leader[T]) -> tuple[str, tuple[int, ...]]:
    return leader.namespace, tuple(leader.prompt_token_ids[:LEAST_SHARED_TOKENS])
