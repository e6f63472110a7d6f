"""Gates on the policies, in a seeded simulation with a virtual clock: priority classes."""

import pytest
from inferwire_server.domain.generation import Priority

from bench.simulation.priorities import AGEING, NO_AGEING, ageing, batch_beside_people, inversion

LONGEST_PREFILL_S = 0.25
"""2,000 prompt tokens beside 32 outputs."""


@pytest.mark.case("H17")
def test_a_standard_request_gets_through_interactive_overload() -> None:
    figures = ageing(AGEING)

    assert figures.standard_first_token_s <= 10.0
    assert figures.interactive_starts_in_order


def test_without_ageing_it_would_wait_for_the_end_of_the_overload() -> None:
    assert ageing(NO_AGEING).standard_first_token_s > 25.0


@pytest.mark.case("H17")
def test_an_interactive_request_waits_for_two_releases_and_one_prefill_at_most() -> None:
    figures = inversion(Priority.STANDARD)

    assert figures.started_after_s <= figures.second_release_s + LONGEST_PREFILL_S


def test_an_interactive_request_finds_a_slot_free_of_batch() -> None:
    assert inversion(Priority.BATCH).started_after_s <= 0.05


def test_batch_fills_idle_capacity() -> None:
    alone, beside = batch_beside_people(batch=False), batch_beside_people(batch=True)

    assert beside.interactive_tokens_per_s >= 0.98 * alone.interactive_tokens_per_s
    assert beside.interactive_tokens_per_s + beside.batch_tokens_per_s >= 1.8 * alone.interactive_tokens_per_s
    assert beside.interactive_first_token_p99_s <= 2.0 * alone.interactive_first_token_p99_s
