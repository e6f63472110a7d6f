"""How unkind this stand-in is today: read from `standin.json` in the model folder, and from marks in prompts."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

VOCABULARY = 1024
ENDS_AFTER = 600
"""A first prompt id of 600 + n: the output ends by itself, with the engine's own end id, after n tokens."""
ENDS_OTHERWISE_AFTER = 700
"""The same with the second end id of the generation config."""
FAILS = 801
"""The request fails in the worker after three tokens."""
STRAYS = 802
"""The third token is outside the vocabulary."""
NEVER_ACKNOWLEDGES = 803
"""An abort stops it, and nobody is told."""
ACKNOWLEDGES_LATE = 804
"""An abort is answered 40 steps later."""
FAILS_AT_ONCE = 805
"""The request fails in the worker before any token."""


@dataclass(slots=True, kw_only=True)
class Temperament:
    """Of one LLM."""

    step_s: float = 0.0005
    tokens_per_step: list[int] = field(default_factory=lambda: [1, 1, 3, 1, 2])
    acknowledges_aborts: bool = True
    worker_dies_at_step: int | None = None
    """The worker ends, its future is done, and no coroutine is woken."""
    worker_silent_at_step: int | None = None
    """The worker goes on without a word."""
    fatal_at_step: int | None = None
    """An error is raised to whoever reads next, after a shutdown on the reader's thread that never returns."""
    reader_stuck_at_step: int | None = None
    """Whoever reads next blocks its thread, and nothing shows it."""
    load_hangs: bool = False
    load_fails: str = ""
    shutdown_hangs: bool = False
    writes_report: bool = False
    """Whether what was asked of it is written beside the model when it shuts down."""
    kv_blocks: int = 4096
    statistics: list[Any] = field(default_factory=list)
    """Strange statistics to be mixed in."""

    @classmethod
    def of(cls, folder: Path) -> Temperament:
        file = folder / "standin.json"
        return cls(**json.loads(file.read_text())) if file.exists() else cls()


@dataclass(slots=True)
class Record:
    """What one LLM was asked to do."""

    constructor: dict[str, Any] = field(default_factory=dict)
    submitted: int = 0
    finished: int = 0
    aborts: Counter[int] = field(default_factory=Counter)
    live: int = 0
    live_salts: Counter[str] = field(default_factory=Counter)
    seen_salts: set[str] = field(default_factory=set)
    waiting_peak: int = 0
    """Most requests that waited in the engine's own queue."""
    sampling: list[dict[str, Any]] = field(default_factory=list)
    arguments: list[dict[str, Any]] = field(default_factory=list)
    submitting_threads: set[int] = field(default_factory=set)
    is_shut_down: bool = False

    def write(self, folder: Path) -> None:
        summary = {
            name: value
            for name, value in asdict(self).items()
            if name in ("submitted", "finished", "live", "waiting_peak", "is_shut_down")
        }
        summary |= {"aborts": sum(self.aborts.values()), "aborted_requests": len(self.aborts)}
        summary["live_salts"] = sum(self.live_salts.values())
        (folder / "standin-report.json").write_text(json.dumps(summary))


records: list[Record] = []
"""Of every LLM of this process, in order."""
