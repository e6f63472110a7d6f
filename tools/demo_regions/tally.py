"""What became of the calls: by act, and by the way that they took."""

from __future__ import annotations

import enum
from collections import Counter
from dataclasses import dataclass, field


class Way(enum.Enum):
    """How calls reach the servers."""

    UNARY_DIRECT = "unary"
    """By inferwire's client, straight to the servers."""
    UNARY_ENVOY = "unary, Envoy"
    """By a plain stub."""
    STREAM_DIRECT = "stream"
    STREAM_ENVOY = "stream, Envoy"
    """By inferwire's client, to which Envoy is one endpoint."""


UNARY = (Way.UNARY_DIRECT, Way.UNARY_ENVOY)
STREAMS = (Way.STREAM_DIRECT, Way.STREAM_ENVOY)


@dataclass
class Tally:
    """The calls of one act that went one way, counted when they end."""

    calls: int = 0
    lost: int = 0
    """Ended with an error, or without some of their tokens, or with others than undisturbed."""
    doubled: int = 0
    """Tokens that came twice."""
    resumed: int = 0
    """Streams that went on on another server."""
    seconds: list[float] = field(default_factory=list)
    longest_gap_s: float = 0.0
    """Between two deltas of a stream."""
    errors: Counter[str] = field(default_factory=Counter)
    regions: Counter[str] = field(default_factory=Counter)
    """Which region the calls ended in."""

    def ended(self, seconds: float, *, region: str = "", error: str = "") -> None:
        """Count one call."""
        self.calls += 1
        self.seconds.append(seconds)
        if region:
            self.regions[region] += 1
        if error:
            self.lost += 1
            self.errors[error] += 1

    def quantile_ms(self, share: float) -> float:
        """The time that this share of the calls did not exceed; 0 without calls."""
        ordered = sorted(self.seconds)
        return 1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


class Book:
    """The tallies of every act."""

    def __init__(self, first_act: str) -> None:
        self.acts: dict[str, dict[Way, Tally]] = {}
        self.begin(first_act)

    def begin(self, act: str) -> None:
        """Calls that end from now on belong to this act."""
        self.act = act
        self.acts[act] = {way: Tally() for way in Way}

    def tally(self, way: Way) -> Tally:
        """Of the act that is going on."""
        return self.acts[self.act][way]
