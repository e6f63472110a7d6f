"""What must hold of each act."""

from __future__ import annotations

from dataclasses import dataclass

from tools.demo_regions.tally import STREAMS, UNARY, Book, Tally, Way

BASELINE = "baseline"
DRAIN = "drain"
GREY = "grey"
KILL = "kill"
RECOVERY = "recovery"
ACTS = (BASELINE, DRAIN, GREY, KILL, RECOVERY)

GREY_CALLS = 60
"""Unary calls, each way, that a grey region gets."""


@dataclass(frozen=True)
class Gate:
    """One thing that must hold, with the figures."""

    name: str
    figures: str
    is_met: bool


def gates(book: Book) -> list[Gate]:
    """Every gate. An act without calls has missed its gates."""
    found = []
    for act in ACTS:
        tallies = book.acts.get(act, {})
        for way in Way:
            tally = tallies.get(way, Tally())
            found.append(Gate(f"{act}: {way.value}", _figures(way, tally), _holds(act, way, tally)))
    return found


def _holds(act: str, way: Way, tally: Tally) -> bool:
    least = GREY_CALLS if act == GREY and way in UNARY else 1
    # A region that is killed while no stream is on it would prove nothing.
    is_proof = act != KILL or way in UNARY or tally.resumed > 0
    return is_proof and tally.calls >= least and not tally.lost and not tally.doubled


def _figures(way: Way, tally: Tally) -> str:
    lost = f"{tally.lost} lost of {tally.calls}"
    why = "".join(f"; {error} x{times}" for error, times in tally.errors.most_common(3))
    return f"{lost}, {tally.doubled} tokens doubled, {tally.resumed} resumed{why}" if way in STREAMS else lost + why
