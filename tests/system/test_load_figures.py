"""What the load generator plans and what it makes of the outcomes."""

from dataclasses import replace
from itertools import pairwise

import pytest

from bench.load.caller import COMPLETED, Record
from bench.load.report import report
from bench.load.schedule import Schedule, Shot

PLAN = Schedule(seed=1, rate=10.0, duration_s=200.0, prompt_tokens=(50, 2000), deadline_s=(2.0, 10.0))


def record(at_s: float = 0.0, *, late_s: float = 0.0, first_token_s: float = 1.0, outcome: str = COMPLETED) -> Record:
    """A call of 100 + 10 tokens whose first token came so long after the intended arrival."""
    shot = Shot(number=0, at_s=at_s, prompt_tokens=100, deadline_s=60.0, leaves_after_tokens=None)
    return Record(
        shot=shot,
        sent_at=at_s + late_s,
        first_token_at=at_s + first_token_s,
        ended_at=at_s + 2.0,
        output_tokens=10,
        outcome=outcome,
    )


def test_the_same_seed_gives_the_same_calls() -> None:
    assert PLAN.shots() == PLAN.shots()
    assert PLAN.shots() != replace(PLAN, seed=2).shots()


def test_prompts_are_repeatable_and_never_alike() -> None:
    first, second = PLAN.shots()[:2]

    assert first.prompt(1) == first.prompt(1)
    assert len(first.prompt(1)) == first.prompt_tokens
    assert first.prompt(1)[:50] != second.prompt(1)[:50]


def test_poisson_arrivals_have_the_rate_and_its_spread() -> None:
    times = [shot.at_s for shot in PLAN.shots()]
    gaps = [after - before for before, after in pairwise(times)]
    mean = sum(gaps) / len(gaps)

    assert mean == pytest.approx(0.1, rel=0.1)
    assert sum((gap - mean) ** 2 for gap in gaps) / len(gaps) == pytest.approx(mean**2, rel=0.2)


def test_bursts_arrive_together_at_the_same_mean_rate() -> None:
    times = [shot.at_s for shot in replace(PLAN, burst_size=20, burst_spacing_s=0.005, duration_s=10.0).shots()]

    assert len(times) == 100
    assert times[19] - times[0] == pytest.approx(0.095)
    assert times[20] == pytest.approx(2.0)


def test_lengths_are_within_what_was_asked_for() -> None:
    shots = replace(PLAN, mean_output_tokens=100.0).shots()
    leaves = [shot.leaves_after_tokens or 0 for shot in shots]

    assert all(50 <= shot.prompt_tokens <= 2000 and 2.0 <= shot.deadline_s <= 10.0 for shot in shots)
    assert min(leaves) >= 1
    assert sum(leaves) / len(leaves) == pytest.approx(100, rel=0.1)


def test_times_count_from_the_intended_arrival_however_late_the_call_was_sent() -> None:
    figures = report([record(late_s=0.8)], duration_s=10.0, warm_up_s=0.0, first_token_target_s=3.0)

    assert figures["first_token_s"]["p50"] == 1.0
    assert figures["caller_lateness_s"]["max"] == 0.8


def test_only_complete_calls_with_a_timely_first_token_are_good() -> None:
    records = [record(), record(first_token_s=4.0), record(outcome="DEADLINE_EXCEEDED/EXPIRED")]

    figures = report(records, duration_s=10.0, warm_up_s=0.0, first_token_target_s=3.0)

    assert figures["good_calls"] == 1
    assert figures["goodput_tokens_per_s"] == 11.0
    assert figures["wasted_tokens_share"] == pytest.approx(2 / 3, abs=1e-4)


def test_an_output_that_ends_without_a_token_is_an_answer() -> None:
    empty = record()
    empty.first_token_at, empty.output_tokens = None, 0

    figures = report([empty], duration_s=10.0, warm_up_s=0.0, first_token_target_s=3.0)

    assert (figures["good_calls"], figures["wasted_tokens_share"], figures["first_token_s"]) == (1, 0.0, None)


def test_the_warm_up_does_not_count() -> None:
    records = [record(1.0), record(5.0)]

    figures = report(records, duration_s=10.0, warm_up_s=2.0, first_token_target_s=None)

    assert (figures["calls"], figures["calls_per_s"]) == (1, 0.125)
