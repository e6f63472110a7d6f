"""When will the first token come?"""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from inferwire_server.domain.errors import WouldExceed
from inferwire_server.scheduling.estimator import COLD_RELEASES, Estimator, Forecast, Run, require_in_time
from inferwire_server.scheduling.priority_class import Ahead

STEP_S = 0.02
PREFILL_S = 0.1
SLOTS = 4


@dataclass(eq=False)
class Output:
    """Counts what a pretended engine has produced."""

    output_tokens: int = 0


class PretendedEngine:
    """Feeds an estimator with outputs of one length on a few slots, in whole steps."""

    def __init__(self, *, output_tokens: int = 100, max_output_tokens: int = 512, prompt_tokens: int = 1000) -> None:
        self.estimator = Estimator()
        self.now = 0.0
        self._length = output_tokens
        self._max_output_tokens = max_output_tokens
        self._prompt_tokens = prompt_tokens
        self._runs: list[tuple[Run, Output, float]] = []

    def start(self) -> None:
        output = Output()
        run = self.estimator.started(
            output, prompt_tokens=self._prompt_tokens, max_output_tokens=self._max_output_tokens, now=self.now
        )
        self._runs.append((run, output, self.now))

    def step(self, *, seconds: float = STEP_S) -> None:
        self.now += seconds
        for entry in list(self._runs):
            run, output, started_at = entry
            if self.now < started_at + PREFILL_S:
                continue
            output.output_tokens += 1
            if output.output_tokens == 1:
                self.estimator.first_token(run, self.now)
            if output.output_tokens == self._length:
                self.estimator.released(run, self.now)
                self._runs.remove(entry)

    def run_full(self, *, seconds: float) -> None:
        """Keep every slot taken, begun at even distances, so that releases are spread evenly."""
        turn_s = self._length * STEP_S + PREFILL_S
        until, next_start = self.now + seconds, self.now
        while self.now < until:
            if len(self._runs) < SLOTS and self.now >= next_start:
                self.start()
                next_start = self.now + turn_s / SLOTS - 2 * STEP_S
            self.step()

    def forecast(self, *, ahead: int = 0, free_slots: int = 0, prompt_tokens: int = 1000) -> Forecast:
        return self.estimator.forecast(
            prompt_tokens=prompt_tokens, now=self.now, free_slots=free_slots, ahead=Ahead(ahead, ahead * 1000)
        )


def warm_engine(**about: int) -> PretendedEngine:
    engine = PretendedEngine(**about)
    engine.run_full(seconds=40.0)
    return engine


def test_knows_nothing_at_first_and_speaks_against_nobody() -> None:
    forecast = Estimator().forecast(prompt_tokens=100_000, now=0.0, free_slots=0, ahead=Ahead(1000, 10**6))

    assert forecast == Forecast(wait_s=0.0, first_token_s=0.0, latest_s=0.0, token_s=0.0)


def test_waits_for_slots_count_as_nothing_until_some_outputs_have_ended() -> None:
    engine = PretendedEngine(output_tokens=5)
    for _ in range(COLD_RELEASES - 1):
        engine.start()
        for _ in range(20):
            engine.step()

    assert engine.estimator.forecast(prompt_tokens=0, now=engine.now, free_slots=0).wait_s == pytest.approx(0, abs=0.2)


def test_a_free_slot_costs_only_the_prefill() -> None:
    forecast = warm_engine().forecast(free_slots=1)

    assert forecast.first_token_s == pytest.approx(PREFILL_S, abs=2 * STEP_S)
    assert forecast.wait_s == pytest.approx(0.0, abs=2 * STEP_S)


def test_the_wait_is_for_as_many_releases_as_requests_go_before() -> None:
    engine = warm_engine()
    turn_s = 100 * STEP_S + PREFILL_S

    forecasts = [engine.forecast(ahead=ahead).wait_s for ahead in (3, 7, 11)]

    assert forecasts == pytest.approx([turn_s, 2 * turn_s, 3 * turn_s], rel=0.3)


def test_lengths_are_learnt_and_not_read_from_the_limit() -> None:
    short = warm_engine(output_tokens=10, max_output_tokens=512).forecast(ahead=7)
    long = warm_engine(output_tokens=300, max_output_tokens=512).forecast(ahead=7)

    assert short.first_token_s < 1.5
    assert long.first_token_s > 6.0


def test_no_output_is_expected_to_outlive_its_limit() -> None:
    engine = warm_engine(output_tokens=300)
    bounded = PretendedEngine(output_tokens=20, max_output_tokens=20)
    bounded.estimator, bounded.now = engine.estimator, engine.now + 60.0
    for run, _, _ in engine._runs:
        engine.estimator.released(run, engine.now)
    for _ in range(SLOTS):
        bounded.start()
    for _ in range(10):
        bounded.step()

    assert bounded.forecast().wait_s < 1.0


def test_outputs_begun_together_are_expected_to_end_together() -> None:
    engine = warm_engine()
    for run, _, _ in engine._runs:
        engine.estimator.released(run, engine.now)
    engine._runs.clear()
    for _ in range(SLOTS):
        engine.start()
    for _ in range(30):
        engine.step()

    assert engine.forecast().wait_s > 0.5


def test_prompts_under_way_and_ahead_are_in_the_way() -> None:
    engine = warm_engine()
    before = engine.forecast(free_slots=9).first_token_s

    behind_two = engine.forecast(free_slots=9, ahead=2).first_token_s

    assert behind_two > 2 * before


def test_cached_tokens_need_no_prefill() -> None:
    estimator = Estimator()
    for number in range(20):
        run = estimator.started(Output(), prompt_tokens=100 * number, max_output_tokens=9, now=float(number))
        estimator.first_token(run, number + 0.01 * number)
        estimator.released(run, number + 0.5)

    whole = estimator.forecast(prompt_tokens=1000, now=20.0, free_slots=1)
    cached = estimator.forecast(prompt_tokens=1000, cached_tokens=900, now=20.0, free_slots=1)

    assert whole.first_token_s == pytest.approx(0.1, rel=0.05)
    assert cached.first_token_s == pytest.approx(0.01, rel=0.3)


def test_a_slower_pace_is_noticed() -> None:
    engine = warm_engine()
    before = engine.forecast(ahead=7).first_token_s

    for _ in range(40):
        engine.step(seconds=4 * STEP_S)
        engine.forecast()

    assert engine.forecast(ahead=7).first_token_s > 1.5 * before


def test_a_cancelled_prompt_is_no_longer_in_the_way() -> None:
    estimator = Estimator()
    run = estimator.started(Output(), prompt_tokens=5000, max_output_tokens=9, now=0.0)

    estimator.released(run, 1.0)

    assert estimator.pending_prompt_tokens == 0


def test_short_prompts_have_no_advantage_where_others_wait() -> None:
    engine = warm_engine()

    waiting = [engine.forecast(ahead=3, prompt_tokens=tokens) for tokens in (10, 1000)]
    starting = [engine.forecast(free_slots=1, prompt_tokens=tokens) for tokens in (10, 1000)]

    assert waiting[0].latest_s == pytest.approx(waiting[1].latest_s)
    assert waiting[0].first_token_s < waiting[1].first_token_s
    assert starting[0].latest_s < starting[1].latest_s


IN_TWO_SECONDS = Forecast(wait_s=1.0, first_token_s=1.8, latest_s=2.0, token_s=0.1)


def check(forecast: Forecast, *, target: float | None = None, deadline: float | None = None, least: int = 0) -> None:
    require_in_time(
        forecast,
        now=100.5,
        arrived_at=100.0,
        first_token_target_s=target,
        deadline=deadline,
        min_output_tokens=least,
    )


def test_nobody_is_refused_who_set_no_limit() -> None:
    check(IN_TWO_SECONDS)


def test_what_cannot_meet_its_target_is_refused() -> None:
    check(IN_TWO_SECONDS, target=2.6)
    with pytest.raises(WouldExceed, match=r"may take 2\.0 s more; 0\.5 of 2\.4 s of first_token_target are gone"):
        check(IN_TWO_SECONDS, target=2.4)


def test_what_cannot_begin_before_its_deadline_is_refused() -> None:
    check(IN_TWO_SECONDS, deadline=102.6)
    with pytest.raises(WouldExceed, match=r"deadline is in 1\.9 s"):
        check(IN_TWO_SECONDS, deadline=102.4)


def test_the_least_output_must_come_before_the_deadline_too() -> None:
    check(IN_TWO_SECONDS, deadline=103.6, least=11)
    with pytest.raises(WouldExceed, match=r"first 13 output tokens may take 3\.2 s"):
        check(IN_TWO_SECONDS, deadline=103.6, least=13)


def test_the_refusal_carries_no_retry_hint() -> None:
    with pytest.raises(WouldExceed) as refusal:
        check(IN_TWO_SECONDS, target=1.0)

    assert refusal.value.retry_after_s is None
