"""The live table, and the summary."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from rich.box import SIMPLE
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from tools.demo_regions.acts import Play
from tools.demo_regions.gates import ACTS, Gate
from tools.demo_regions.tally import STREAMS, Book, Tally, Way
from tools.demo_regions.traffic import Traffic

_REFRESH_S = 0.25
_CAPTION = (
    "Unary through Envoy is a plain stub; the others are inferwire's client. Gap: longest wait between two deltas."
)
_FIGURES = ("calls", "lost", "doubled", "resumed", "p50 ms", "gap ms")


@asynccontextmanager
async def live(console: Console, book: Book, play: Play, traffic: Traffic) -> AsyncIterator[None]:
    """Show the act that goes on while the body runs; on what is no terminal, a line for each act."""
    following = asyncio.create_task(_follow(console, book, play, traffic))
    try:
        yield
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


async def _follow(console: Console, book: Book, play: Play, traffic: Traffic) -> None:
    if not console.is_terminal:
        shown, began = "", time.monotonic()
        while True:
            if play.doing != shown:
                shown = play.doing
                console.print(f"{time.monotonic() - began:5.1f} s  {book.act}: {shown}", highlight=False)
            await asyncio.sleep(_REFRESH_S)
    with Live(console=console, auto_refresh=False, transient=True) as screen:
        while True:
            screen.update(_scene(book, play, traffic), refresh=True)
            await asyncio.sleep(_REFRESH_S)


def _scene(book: Book, play: Play, traffic: Traffic) -> RenderableType:
    acts = Text("  ").join(_act(act, book) for act in ACTS)
    table = Table(
        box=SIMPLE, pad_edge=False, title=play.doing, title_justify="left", caption=_CAPTION, caption_justify="left"
    )
    for name in ("way", *_FIGURES, "by region"):
        table.add_column(name, justify="right" if name in _FIGURES else "left", no_wrap=True)
    for way in Way:
        tally = book.tally(way)
        table.add_row(*_row(way, tally), _shares(way, tally))
    sent = ", ".join(f"{region} {calls}" for region, calls in sorted(traffic.envoy_sent.items()))
    return Group(acts, table, Text(f"Envoy has sent, since it started: {sent}", style="dim"))


def _act(act: str, book: Book) -> Text:
    if act == book.act:
        return Text(f"▶ {act}", style="bold")
    return Text(f"✓ {act}" if act in book.acts else f"· {act}", style="green" if act in book.acts else "dim")


def _row(way: Way, tally: Tally) -> Sequence[str]:
    is_stream = way in STREAMS
    return (
        way.value,
        str(tally.calls),
        f"[red]{tally.lost}[/]" if tally.lost else "0",
        str(tally.doubled) if is_stream else "",
        str(tally.resumed) if is_stream else "",
        f"{tally.quantile_ms(0.5):.0f}",
        f"{1000 * tally.longest_gap_s:.0f}" if is_stream else "",
    )


def _shares(way: Way, tally: Tally) -> str:
    """As the client knows; behind Envoy it does not."""
    if way in (Way.UNARY_ENVOY, Way.STREAM_ENVOY):
        return ""
    return ", ".join(f"{region} {calls}" for region, calls in sorted(tally.regions.items()))


def summary(console: Console, book: Book, gates: Sequence[Gate]) -> None:
    """A row for each act and way, then the gates that were missed."""
    table = Table(box=SIMPLE, pad_edge=False, caption=_CAPTION, caption_justify="left")
    for name in ("act", "way", *_FIGURES):
        table.add_column(name, justify="right" if name in _FIGURES else "left", no_wrap=True)
    for act, tallies in book.acts.items():
        for way in Way:
            table.add_row(act if way is Way.UNARY_DIRECT else "", *_row(way, tallies[way]))
        table.add_section()
    console.print(table)
    for gate in gates:
        if not gate.is_met:
            console.print(f"[red]missed[/] {gate.name}: {gate.figures}", highlight=False)
    met = sum(gate.is_met for gate in gates)
    console.print(f"{met} of {len(gates)} gates met", style="green" if met == len(gates) else "red")
