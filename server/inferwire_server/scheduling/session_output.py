"""One output of a generation on its way through the engine and the text layer."""

from __future__ import annotations

from inferwire_server.domain.engine import EngineStream
from inferwire_server.domain.generation import TokenLogprobs
from inferwire_server.text.output import OutputText


class SessionOutput:
    """What it holds back, and how far it is. Times are monotonic seconds."""

    __slots__ = (
        "index",
        "is_finished",
        "last_tokens_at",
        "output_tokens",
        "pending_ids",
        "pending_logprobs",
        "stream",
        "text",
    )

    def __init__(self, index: int, text: OutputText, *, is_finished: bool) -> None:
        self.index = index
        self.text = text
        self.is_finished = is_finished
        self.stream: EngineStream | None = None
        self.pending_ids: list[int] = []
        self.pending_logprobs: list[TokenLogprobs] = []
        self.last_tokens_at: float | None = None
        self.output_tokens = 0
        """New tokens that came out of the engine."""
