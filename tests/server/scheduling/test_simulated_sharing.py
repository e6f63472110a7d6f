"""Gates on the policies, in a seeded simulation with a virtual clock: tenants."""

import pytest
from inferwire_server.scheduling.fair_queue import FairQueue

from bench.simulation.sharing import FAIR_BY_WEIGHT, FIFO, light_tenant, token_ratio


def test_a_light_tenant_waits_for_one_release_at_most_beside_a_flood() -> None:
    alone, beside_flood = light_tenant(None), light_tenant(FairQueue)

    assert beside_flood.refused == 0
    assert beside_flood.first_token_p99_s <= alone.first_token_p99_s + beside_flood.release_p99_s


def test_first_come_first_served_would_drown_the_light_tenant() -> None:
    alone, drowned = light_tenant(None), light_tenant(FIFO)

    assert drowned.first_token_p99_s > 10 * (alone.first_token_p99_s + drowned.release_p99_s)
    assert drowned.refused > 0.3 * drowned.requests


def test_two_floods_get_tokens_by_their_weights() -> None:
    assert token_ratio(FAIR_BY_WEIGHT) == pytest.approx(3.0, rel=0.05)


def test_first_come_first_served_knows_no_weights() -> None:
    assert token_ratio(FIFO) == pytest.approx(1.0, rel=0.15)
