"""What `inferwire top` shows, as a rich renderable. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from inferwire.v1 import inference_pb2, operations_pb2
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from inferwire_server.cli.top_figures import Figures

_STEPS = "▁▂▃▄▅▆▇█"
_BAR_CELLS = 20
_MOST_TENANTS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """Everything known at one moment."""

    address: str
    info: inference_pb2.GetServerInfoResponse
    models: Sequence[str]
    status: operations_pb2.GetServerStatusResponse
    load: operations_pb2.Load
    figures: Figures
    page: str
    """Why there are no figures from the metrics page; empty when there are."""
    token_rates: Sequence[float]
    """Output tokens a second, oldest first."""
    trouble: str
    """Why nothing new comes; empty when it does."""


def render(view: View) -> RenderableType:
    """The whole screen."""
    parts: list[RenderableType] = [_title(view)]
    if view.trouble:
        parts.append(Text(view.trouble, style="bold red"))
    parts += [Panel(_work(view), title="work"), Panel(_latency(view), title="last 10 s")]
    if view.load.tenants:
        parts.append(Panel(_tenants(view.load), title="tenants"))
    parts.append(Text("q quits", style="dim"))
    return Group(*parts)


def sparkline(values: Sequence[float]) -> str:
    """A bar for each value, the highest one full."""
    top = max(values, default=0.0)
    if top <= 0:
        return _STEPS[0] * len(values)
    return "".join(_STEPS[min(len(_STEPS) - 1, int(value / top * len(_STEPS)))] for value in values)


def _title(view: View) -> Text:
    place = f" in {view.info.region}" if view.info.region else ""
    title = Text(f"inferwire {view.info.server_version} at {view.address}{place}", style="bold")
    title.append(f"  {', '.join(view.models)}  ", style="cyan")
    state = name_of(operations_pb2.ServerState.Name(view.status.state))
    title.append(state, style="green" if state == "serving" else "yellow")
    if view.status.reason:
        title.append(f": {view.status.reason}", style="yellow")
    if view.status.insecure:
        title.append("  insecure", style="red")
    return title


def _work(view: View) -> Table:
    load, status = view.load, view.status
    rows = _grid()
    rows.add_row("running", str(load.running), "waiting", str(load.waiting))
    batch = str(load.batch_size) if load.HasField("batch_size") else "–"
    step = f"{view.figures.step_s * 1000:.1f} ms" if view.figures.step_s is not None else "–"
    rows.add_row("batch", batch, "step", step)
    output, prompts = load.output_tokens_per_second, load.prompt_tokens_per_second
    rows.add_row("output", f"{output:.1f} tokens/s", "prompts", f"{prompts:.1f} tokens/s")
    engine = f"{name_of(operations_pb2.EngineState.Name(status.engine_state))}, {status.engine_restarts} restarts"
    rows.add_row("KV cache", _bar(load.kv_utilization) if load.HasField("kv_utilization") else "–", "engine", engine)
    rows.add_row("", Text(sparkline(view.token_rates), style="green", no_wrap=True, overflow="crop"), "", "")
    return rows


def _latency(view: View) -> RenderableType:
    if view.page:
        return Text(view.page, style="yellow")
    figures = view.figures
    rows = _grid()
    rows.add_row("answered", f"{figures.ok_per_second:.1f} /s", "other ends", _others(figures))
    rows.add_row("first token", _pair(figures.first_token_s), "token gap", _pair(figures.inter_token_s))
    cached = "–" if figures.cached_share is None else f"{figures.cached_share:.0%} of prompt tokens"
    rows.add_row("queue", _pair(figures.queue_s), "cached", cached)
    return rows


def _tenants(load: operations_pb2.Load) -> Table:
    table = Table("tenant", box=None, expand=True)
    for heading in ("running", "waiting", "tokens/s"):
        table.add_column(heading, justify="right")
    for each in load.tenants[:_MOST_TENANTS]:
        # A name is a caller's: it is shown as text, never as markup.
        name = Text("".join(letter if letter.isprintable() else "?" for letter in each.tenant) or "(none)")
        table.add_row(name, str(each.running), str(each.waiting), f"{each.tokens_per_second:.1f}")
    if (rest := len(load.tenants) - _MOST_TENANTS) > 0:
        table.add_row(Text(f"and {rest} more", style="dim"), "", "", "")
    return table


def _grid() -> Table:
    grid = Table.grid(padding=(0, 2), expand=True)
    for style, ratio in (("dim", 1), ("", 3), ("dim", 1), ("", 3)):
        grid.add_column(style=style, ratio=ratio)
    return grid


def _bar(share: float) -> Text:
    full = round(min(1.0, share) * _BAR_CELLS)
    style = "red" if share > 0.95 else "yellow" if share > 0.8 else "green"
    return Text.assemble(("█" * full, style), ("░" * (_BAR_CELLS - full), "dim"), f" {share:.0%}")


def _pair(seconds: tuple[float, float] | None) -> str:
    if seconds is None:
        return "–"
    return f"p50 {_duration(seconds[0])}, p99 {_duration(seconds[1])}"


def _duration(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


def _others(figures: Figures) -> str:
    return ", ".join(f"{name} {rate:.1f} /s" for name, rate in figures.other_per_second.items()) or "none"


def name_of(value: str) -> str:
    """A state's word, as in SERVER_STATE_SERVING."""
    return value.split("_STATE_")[-1].lower()
