"""What `inferwire top` makes of two scrapes."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from inferwire_server.cli.top_figures import Figures, History, between, quantile, read
from inferwire_server.cli.top_screen import sparkline

PAGE = """\
# TYPE inferwire_generations counter
inferwire_generations_total{{model="m@1",outcome="ok"}} {ok}
inferwire_generations_total{{model="m@1",outcome="OVERLOADED"}} {refused}
# TYPE inferwire_prompt_tokens counter
inferwire_prompt_tokens_total{{model="m@1"}} {prompt}
# TYPE inferwire_cached_tokens counter
inferwire_cached_tokens_total{{model="m@1"}} {cached}
# TYPE inferwire_time_to_first_token_seconds histogram
inferwire_time_to_first_token_seconds_bucket{{le="0.1",priority="low"}} {quick}
inferwire_time_to_first_token_seconds_bucket{{le="0.2",priority="low"}} {ok}
inferwire_time_to_first_token_seconds_bucket{{le="+Inf",priority="low"}} {ok}
"""


def page(ok: int = 0, refused: int = 0, prompt: int = 0, cached: int = 0, quick: int = 0) -> str:
    return PAGE.format(ok=ok, refused=refused, prompt=prompt, cached=cached, quick=quick)


def test_rates_are_what_rose_over_the_time_between() -> None:
    before = read(page(ok=100, refused=7, prompt=1000, cached=100), at=10.0)
    after = read(page(ok=140, refused=9, prompt=1400, cached=200), at=14.0)

    figures = between(before, after)

    assert figures.ok_per_second == 10.0
    assert figures.other_per_second == {"OVERLOADED": 0.5}
    assert figures.cached_share == 0.25


def test_a_quantile_is_of_what_was_observed_between() -> None:
    figures = between(read(page(ok=1000, quick=1000), at=0.0), read(page(ok=1010, quick=1005), at=1.0))

    assert figures.first_token_s == pytest.approx((0.1, 0.198))


def test_what_did_not_happen_is_unknown() -> None:
    same = read(page(ok=5), at=0.0)

    figures = between(same, read(page(ok=5), at=1.0))

    assert figures.first_token_s is None
    assert figures.cached_share is None
    assert figures.other_per_second == {}


def test_a_restarted_server_is_not_a_negative_rate() -> None:
    history = History()
    history.add(read(page(ok=100), at=0.0))
    history.add(read(page(ok=3), at=1.0))

    assert history.figures() == Figures()

    history.add(read(page(ok=5), at=2.0))

    assert history.figures().ok_per_second == 2.0


def test_figures_are_of_the_last_seconds_only() -> None:
    history = History()
    for second in range(60):
        history.add(read(page(ok=1000 if second > 20 else 0), at=float(second)))

    assert history.figures().ok_per_second == 0.0


@given(st.lists(st.integers(0, 50), min_size=2, max_size=12), st.floats(0.01, 1))
def test_a_quantile_lies_in_the_bucket_that_holds_its_rank(rises: list[int], share: float) -> None:
    bounds = [float(index + 1) for index in range(len(rises) - 1)] + [math.inf]
    counts = {bound: float(sum(rises[: index + 1])) for index, bound in enumerate(bounds)}

    found = quantile(counts, share)

    if not sum(rises):
        assert found is None
        return
    assert found is not None
    first = next(bound for bound in bounds if counts[bound] >= share * sum(rises))
    assert found <= min(first, bounds[-2])
    assert found >= (bounds[bounds.index(first) - 1] if first != bounds[0] else 0.0)


def test_the_highest_bar_is_full_and_silence_is_flat() -> None:
    assert sparkline([0, 5, 10]) == "▁▅█"
    assert sparkline([0, 0]) == "▁▁"
