"""How an interrupted output is taken up again. Pure."""

from __future__ import annotations

from inferwire_server.domain.engine import EngineRequest
from inferwire_server.domain.generation import Continuation
from inferwire_server.engines.openvino.generation_settings import is_greedy
from inferwire_server.engines.openvino.options import Profile


def continuation_of(request: EngineRequest, profile: Profile) -> Continuation:
    """FRESH, PREFILLED (the given tokens become part of the prompt) or REGENERATED (made again and compared).

    Appending gives the uninterrupted output only where the next token depends on nothing but the tokens before it.
    The pipeline restarts its random generator and its grammar with each request; under FAST,
    where equality is not promised anyway, only a grammar makes regeneration necessary.
    """
    if not request.resumed_token_ids:
        return Continuation.FRESH
    if request.grammar is not None:
        return Continuation.REGENERATED
    if profile is Profile.EXACT and not is_greedy(request):
        return Continuation.REGENERATED
    return Continuation.PREFILLED


class Replay:
    """Swallows regenerated tokens for as long as they are the ones that the reader holds."""

    def __init__(self, expected: list[int]) -> None:
        self._expected = expected
        self._seen = 0

    @property
    def is_complete(self) -> bool:
        """Whether everything the reader holds has come again."""
        return self._seen == len(self._expected)

    def swallow(self, token_ids: list[int]) -> int | None:
        """How many of these ids the reader has already; None when one differs."""
        count = min(len(token_ids), len(self._expected) - self._seen)
        if token_ids[:count] != self._expected[self._seen : self._seen + count]:
            return None
        self._seen += count
        return count
