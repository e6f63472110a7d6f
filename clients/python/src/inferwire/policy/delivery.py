"""What may be said of a stream's event, and what a continuation of a stream has to know."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from inferwire.errors import StreamBroken, StreamDiverged, StreamGap, StreamRepeat, StreamTruncated


class Delivery(enum.Enum):
    """What to do with an event that keeps the contract."""

    DELIVER = "deliver"
    """Hand it on as it is."""
    DROP = "drop"
    """The caller has it already, or did not ask for it."""


@dataclass(frozen=True, slots=True)
class Trim:
    """Deliver the end of a delta, or of prompt logprobs."""

    skip_tokens: int
    """To leave out at its front, logprobs included; `token_offset` grows by it."""
    text: str
    """What is left of a delta's text."""


class ViolationKind(enum.Enum):
    """How a stream broke the contract."""

    GAP = "gap"
    REPEAT = "repeat"
    TRUNCATED = "truncated"
    DIVERGED = "diverged"

    @property
    def error(self) -> type[StreamBroken]:
        """What the caller gets."""
        return _ERRORS[self]


_ERRORS: dict[ViolationKind, type[StreamBroken]] = {
    ViolationKind.GAP: StreamGap,
    ViolationKind.REPEAT: StreamRepeat,
    ViolationKind.TRUNCATED: StreamTruncated,
    ViolationKind.DIVERGED: StreamDiverged,
}


@dataclass(frozen=True, slots=True)
class Violation:
    """An event that must not be delivered; the attempt is over."""

    kind: ViolationKind
    message: str


Verdict = Delivery | Trim | Violation


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedFacts:
    """What a continuation must have in common with the stream that it continues."""

    model_fingerprint: str
    prompt_digest: bytes = b""
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class HeldOutput:
    """What the caller has of one output."""

    output_index: int
    token_ids: tuple[int, ...]
    finished: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Continuation:
    """What to ask for, so that the rest of a stream follows."""

    prompt_digest: bytes
    seed: int | None
    expected_fingerprint: str
    """Empty when any model may go on."""
    outputs: tuple[HeldOutput, ...]
