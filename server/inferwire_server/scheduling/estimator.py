"""When will the first token come? Learnt from what the engine did; nothing is read from `max_output_tokens` alone.

Two waits add up. *For slots*: the running outputs' lengths so far, the learnt distribution of lengths and the measured
pace give the expected number of slots released by any time, those taken again meanwhile included. *For prefill*: the
prompt tokens ahead and a line fitted to recent first tokens. The larger of the two bottlenecks rules.

At cold start (fewer than COLD_RELEASES outputs ended) the wait for slots is taken as 0: what is unknown never refuses
anybody. Bounds of the queue and the callers' own deadlines hold meanwhile.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from inferwire_server.domain.errors import WouldExceed
from inferwire_server.scheduling.output_lengths import OutputLengths
from inferwire_server.scheduling.prefill_time import PrefillTime
from inferwire_server.scheduling.priority_class import Ahead

COLD_RELEASES = 8
REFRESH_S = 0.25
"""Least time between two looks at all running outputs."""
PACE_MEMORY_S = 2.0
SMOOTHING = 0.05
"""Share of a new observation in a moving average."""
CELLS_PER_TURN = 8
"""Resolution of the release forecast; a turn is what a slot is held for on average."""
CELLS = 2 * CELLS_PER_TURN
OLDEST_CELL = 4 * CELLS_PER_TURN
"""Outputs older than that are treated alike."""


class Producer(Protocol):
    """What counts an output's tokens."""

    @property
    def output_tokens(self) -> int:
        """Produced so far."""


@dataclass(slots=True, eq=False)
class Run:
    """One output in the engine, from `Estimator.started` to `Estimator.released`."""

    producer: Producer
    prompt_tokens: int
    max_output_tokens: int
    started_at: float
    backlog_tokens: int
    has_first_token: bool = False
    marked_tokens: int = 0
    marked_at: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """Seconds from now. All 0 is "nothing known that speaks against it"."""

    wait_s: float
    """Until its prefill begins."""
    first_token_s: float
    """Until its first token, the wait included."""
    latest_s: float
    """The same with a margin, for decisions: how far forecasts are typically off, and no advantage for short prompts.

    Where requests wait, a prompt shorter than usual counts as a usual one: otherwise short prompts would still be let
    in when longer ones no longer are, and crowd them out for as long as the load lasts.
    """
    token_s: float
    """Between two output tokens."""


class Estimator:
    """Pure: every time is an argument, in seconds of one monotonic clock."""

    def __init__(self) -> None:
        self._runs: dict[Run, None] = {}
        self._lengths = OutputLengths()
        self._prefill = PrefillTime()
        self._pending_prompt_tokens = 0
        self._backlog_at_start = 0.0
        self._mean_prompt = 0.0
        self._prompt_deviation = 0.0
        self._prefill_s = 0.0
        self._paced_tokens = 0.0
        self._paced_s = 0.0
        self._paced_at = 0.0
        self._releases: list[float] = []
        self._cell_tokens = 1.0
        self._slots = 0
        self._refreshed_at: float | None = None

    @property
    def pending_prompt_tokens(self) -> int:
        """Given to the engine and not followed by a first token yet.

        Starting no more prompts while this is above what the engine computes in its next step costs no throughput, and
        leaves the choice of the next one to whoever has the best claim by then.
        """
        return self._pending_prompt_tokens

    def started(
        self, producer: Producer, *, prompt_tokens: int, max_output_tokens: int, now: float, cached_tokens: int = 0
    ) -> Run:
        """The engine has taken an output. `cached_tokens` of its prompt are known to need no prefill."""
        tokens = prompt_tokens - cached_tokens
        self._backlog_at_start += SMOOTHING * (self._pending_prompt_tokens - self._backlog_at_start)
        self._prompt_deviation += SMOOTHING * (abs(tokens - self._mean_prompt) - self._prompt_deviation)
        self._mean_prompt += SMOOTHING * (tokens - self._mean_prompt)
        self._pending_prompt_tokens += tokens
        run = Run(producer, tokens, max_output_tokens, now, self._pending_prompt_tokens)
        self._runs[run] = None
        return run

    def first_token(self, run: Run, now: float) -> None:
        """An output's first token came."""
        seconds = now - run.started_at
        self._prefill.observe(run.backlog_tokens, seconds)
        self._prefill_s += SMOOTHING * (seconds - self._prefill_s)
        self._pending_prompt_tokens -= run.prompt_tokens
        run.has_first_token = True
        run.marked_tokens = run.producer.output_tokens
        run.marked_at = now

    def released(self, run: Run, now: float) -> None:
        """The engine holds an output no more, whatever ended it."""
        self._runs.pop(run, None)
        if run.has_first_token:
            self._mark(run, now)
        else:
            self._pending_prompt_tokens -= run.prompt_tokens
        self._lengths.observe(run.producer.output_tokens)
        if now - self._paced_at >= PACE_MEMORY_S / 2:
            self._measure_pace(now)

    def forecast(
        self,
        *,
        prompt_tokens: int,
        now: float,
        free_slots: int,
        slots: int = 1,
        ahead: Ahead | None = None,
        cached_tokens: int = 0,
    ) -> Forecast:
        """For a request behind `ahead` that needs `slots`; `free_slots` 0 also where KV memory is what lacks."""
        ahead = ahead or Ahead()
        own = prompt_tokens - cached_tokens
        alone_s = self._prefill.predict_s(own)
        first_token_s = self._prefill.predict_s(self._pending_prompt_tokens + ahead.prompt_tokens + own)
        latest_s = first_token_s + self._prefill.deviation_s
        releases = ahead.requests + slots - free_slots
        if releases > 0:
            slot_s = self._release_s(releases, free_slots, now) + self._filling_s(free_slots, ahead) / 2.0
            # The n-th of independent releases comes within 1 / sqrt(n) of its expected time, typically.
            deviation_s = math.hypot(slot_s / math.sqrt(releases), self._prefill.deviation_s)
            first_token_s = max(first_token_s, slot_s + self._prefill_beside_others_s(own))
            usual = int(self._mean_prompt + self._prompt_deviation)
            latest_s = max(first_token_s, slot_s + self._prefill_beside_others_s(usual)) + deviation_s
        return Forecast(
            wait_s=first_token_s - alone_s, first_token_s=first_token_s, latest_s=latest_s, token_s=self._token_s
        )

    @property
    def _token_s(self) -> float:
        return self._paced_s / self._paced_tokens if self._paced_tokens else 0.0

    def _prefill_beside_others_s(self, tokens: int) -> float:
        return self._prefill.predict_s(int(self._backlog_at_start) + tokens)

    def _filling_s(self, free_slots: int, ahead: Ahead) -> float:
        """Until the free slots are taken: prompts ahead go through prefill one after another."""
        if not free_slots or not ahead.requests:
            return 0.0
        tokens = ahead.prompt_tokens * min(free_slots, ahead.requests) // ahead.requests
        return self._prefill.predict_s(self._pending_prompt_tokens + tokens)

    def _release_s(self, releases: int, free_slots: int, now: float) -> float:
        """Expected seconds until that many slots have become free, the free ones being taken already."""
        if self._refreshed_at is None or now - self._refreshed_at >= REFRESH_S:
            self._refreshed_at = now
            self._measure_pace(now)
            self._releases = self._expected_releases(free_slots)
        if not self._releases:
            return 0.0
        expected = self._releases
        at = bisect_left(expected, releases)
        if at < len(expected):
            cells = at - (expected[at] - releases) / (expected[at] - expected[at - 1])
        else:
            cells = at - 1 + (releases - expected[-1]) * CELLS_PER_TURN / self._slots
        return cells * self._cell_tokens * self._token_s

    def _measure_pace(self, now: float) -> None:
        self._paced_at = now
        running = [run for run in self._runs if run.has_first_token]
        if running:
            kept = math.exp(-sum(now - run.marked_at for run in running) / len(running) / PACE_MEMORY_S)
            self._paced_tokens *= kept
            self._paced_s *= kept
            for run in running:
                self._mark(run, now)

    def _mark(self, run: Run, now: float) -> None:
        self._paced_tokens += run.producer.output_tokens - run.marked_tokens
        self._paced_s += now - run.marked_at
        run.marked_tokens = run.producer.output_tokens
        run.marked_at = now

    def _expected_releases(self, free_slots: int) -> list[float]:
        """How many slots are released by the end of each cell of time, of `_cell_tokens` tokens each.

        An output of age a is over after t more tokens with probability 1 - S(a + t) / S(a). Its slot is then taken by
        a new output, and so on: the renewal equation of that process, solved cell by cell.
        """
        if self._lengths.observed < COLD_RELEASES or not self._paced_tokens:
            return []
        prefill_tokens = self._prefill_s / self._token_s
        cell = self._cell_tokens = max(1.0, self._lengths.mean() + prefill_tokens) / CELLS_PER_TURN
        unborn = -round(prefill_tokens / cell)
        groups = Counter(
            (
                min(OLDEST_CELL, round(run.producer.output_tokens / cell)) if run.has_first_token else unborn,
                math.ceil((run.max_output_tokens - run.producer.output_tokens) / cell),
            )
            for run in self._runs
        )
        groups[unborn, CELLS + 1] += free_slots
        self._slots = len(self._runs) + free_slots
        survival = [self._lengths.survival(index * cell) for index in range(OLDEST_CELL + CELLS + 1)]
        ended = [0.0] * (CELLS + 1)
        for (age, left), outputs in groups.items():
            for at, share in enumerate(_ended(survival, age, left)):
                ended[at] += outputs * share
        again = _renewals(_ended(survival, unborn, CELLS + 1))
        rises = [0.0] + [after - before for before, after in itertools.pairwise(ended)]
        return [
            ended[end] + sum(rises[at] * (again[end - at] + again[end - at + 1]) / 2.0 for at in range(1, end + 1))
            for end in range(CELLS + 1)
        ]


def _ended(survival: Sequence[float], age: int, left: int) -> list[float]:
    """The probability that an output is over by the end of each cell; `left` cells is as long as it may last."""
    alive = survival[max(0, age)]
    if alive > 0.0:
        shares = [1.0 - survival[max(0, age + at)] / alive for at in range(CELLS + 1)]
    else:  # Longer than all that were seen: as likely to end at any token as an average output.
        shares = [1.0 - math.exp(-at / CELLS_PER_TURN) for at in range(CELLS + 1)]
    return [share if at < left or at == 0 else 1.0 for at, share in enumerate(shares)]


def _renewals(ended: Sequence[float]) -> list[float]:
    """How often a slot is released by the end of each cell when each output is followed by another at once.

    A release counts as coming in the middle of its cell.
    """
    rises = [0.0] + [after - before for before, after in itertools.pairwise(ended)]
    again = [0.0]
    for end in range(1, len(ended)):
        total = ended[end] + rises[1] * again[end - 1] / 2.0
        total += sum(rises[at] * (again[end - at] + again[end - at + 1]) / 2.0 for at in range(2, end + 1))
        again.append(total / (1.0 - rises[1] / 2.0))
    return again


def require_in_time(
    forecast: Forecast,
    *,
    now: float,
    arrived_at: float,
    first_token_target_s: float | None,
    deadline: float | None,
    min_output_tokens: int = 0,
) -> None:
    """Raise WouldExceed when the first token may come too late for the target or the deadline.

    Before the deadline the rest of `min_output_tokens` must come as well: fewer would be of no use to the caller.
    """
    if first_token_target_s is not None and now + forecast.latest_s > arrived_at + first_token_target_s:
        raise WouldExceed(
            f"the first token may take {forecast.latest_s:.1f} s more; "
            f"{max(0.0, now - arrived_at):.1f} of {first_token_target_s:.1f} s of first_token_target are gone"
        )
    latest_s = forecast.latest_s + max(0, min_output_tokens - 1) * forecast.token_s
    if deadline is not None and now + latest_s > deadline:
        raise WouldExceed(
            f"the first {max(1, min_output_tokens)} output tokens may take {latest_s:.1f} s more; "
            f"the deadline is in {max(0.0, deadline - now):.1f} s"
        )
